"""How many engines, and what each may take."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st
from planned_run import EMPTY_PLAN, job_with

from jobs import machine
from jobs.machine import fleet_for
from pipeline.fleet import plan_fleet

GIB = 2**30


@given(cores=st.integers(1, 256), free=st.integers(1, 2**40), engine=st.integers(1, 2**38))
def test_on_cpus_the_engines_fit_on_the_cores_and_into_the_memory(cores: int, free: int, engine: int) -> None:
    fleet = plan_fleet(job_with(), cores=cores, gpus=0, free_memory=free, engine_memory=engine)
    assert 1 <= fleet.workers <= cores
    assert fleet.workers == 1 or fleet.workers * engine <= 0.75 * free
    assert fleet.workers == cores or (fleet.workers + 1) * engine > 0.75 * free
    assert (fleet.num_gpus, fleet.num_cpus, fleet.threads) == (0.0, 1.0, 1)


@given(cores=st.integers(1, 256), gpus=st.integers(1, 16))
def test_with_gpus_there_is_an_engine_for_each(cores: int, gpus: int) -> None:
    fleet = plan_fleet(job_with(), cores=cores, gpus=gpus, free_memory=GIB, engine_memory=100 * GIB)
    assert (fleet.workers, fleet.num_gpus) == (gpus, 1.0)


@given(cores=st.integers(1, 64), gpus=st.integers(0, 8), wanted=st.integers(1, 100))
def test_the_jobs_own_numbers_win(cores: int, gpus: int, wanted: int) -> None:
    job = job_with(cluster={"workers": wanted, "num_cpus": 3, "num_gpus": 0.5}, engine={"threads": 3})
    fleet = plan_fleet(job, cores=cores, gpus=gpus, free_memory=GIB, engine_memory=GIB)
    assert (fleet.workers, fleet.num_cpus, fleet.num_gpus, fleet.threads) == (wanted, 3, 0.5, 3)
    assert fleet.logical_cpus == 3 * wanted + 1


def test_this_machine_offers_what_its_container_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(16)))
    monkeypatch.setattr(machine, "available_bytes", lambda: 8 * GIB)
    monkeypatch.setattr(machine, "engine_memory", lambda job, plan: 2 * GIB)
    assert fleet_for(job_with(engine={"device": "cpu"}), EMPTY_PLAN, None).workers == 3


def test_a_cluster_offers_what_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "engine_memory", lambda job, plan: 2 * GIB)
    assert fleet_for(job_with(), EMPTY_PLAN, {"CPU": 64.0, "GPU": 8.0}).workers == 8
    assert fleet_for(job_with(), EMPTY_PLAN, {"CPU": 64.0}).workers == 64
