"""S3Store against a real server, and what it makes of bad days: wrong keys, lost answers, expiring credentials."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import boto3
import pytest
from flaky_proxy import FlakyProxy, Trouble, flaky_proxy
from moto import mock_aws
from s3_server import S3Bucket, S3Server

from configs.errors import StorageError
from configs.job import Storage
from pipeline.store.base import AlreadyExists, Changed, NotFound
from pipeline.store.open import open_store
from pipeline.store.s3 import MAX_PUT_BYTES, WRITER, S3Store
from pipeline.store.s3_client import client_for, impatient

SECONDS = 10.0
"""`check` must tell what is wrong within this."""


@pytest.fixture
def store(s3_bucket: S3Bucket) -> S3Store:
    return S3Store(s3_bucket.bucket, s3_bucket.prefix, s3_bucket.storage)


@pytest.fixture
def proxy(s3_server: S3Server) -> Iterator[FlakyProxy]:
    with flaky_proxy(s3_server.endpoint_url) as running:
        yield running


@pytest.fixture
def flaky(store: S3Store, proxy: FlakyProxy) -> S3Store:
    """The same folder, through the proxy."""
    return replace(store, storage=store.storage.model_copy(update={"endpoint_url": proxy.endpoint_url}))


def with_storage(store: S3Store, **changes: object) -> S3Store:
    return replace(store, storage=store.storage.model_copy(update=changes))


def refused(store: S3Store, match: str) -> str:
    """The message of a failing check, which must come soon."""
    started = time.monotonic()
    with pytest.raises(StorageError, match=match) as caught:
        store.check()
    assert time.monotonic() - started < SECONDS
    return str(caught.value)


class TestCheck:
    def test_a_good_store_passes_and_keeps_nothing(self, store: S3Store) -> None:
        store.check()
        assert list(store.list("")) == []

    def test_a_missing_bucket(self, store: S3Store) -> None:
        message = refused(replace(store, bucket="no-such-bucket"), "NoSuchBucket")
        assert "s3://no-such-bucket/" in message
        assert "correct sink.path" in message

    def test_an_unknown_key(self, store: S3Store, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "wrong")
        assert "check AWS_ACCESS_KEY_ID" in refused(store, "InvalidAccessKeyId")

    def test_a_wrong_secret_and_its_correction(self, store: S3Store, monkeypatch: pytest.MonkeyPatch) -> None:
        with monkeypatch.context() as patch:
            patch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
            assert "check AWS_SECRET_ACCESS_KEY" in refused(store, "SignatureDoesNotMatch")
        store.check()

    def test_a_reader_may_not_write(self, store: S3Store, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
        store.put("a", b"x")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3_server.read_only_access_key)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3_server.read_only_secret_key)
        assert "docs/storage.md" in refused(store, "AccessDenied")
        assert store.get("a") == b"x"
        assert [stat.key for stat in store.list("")] == ["a"]
        assert store.now() > 0

    def test_no_credentials(self, store: S3Store, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("AWS_ACCESS_KEY_ID")
        monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
        refused(store, "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, storage.profile, or a role")

    def test_an_unknown_profile(self, store: S3Store) -> None:
        refused(with_storage(store, profile="nobody"), "correct storage.profile")

    def test_a_closed_port(self, store: S3Store) -> None:
        message = refused(with_storage(store, endpoint_url="http://127.0.0.1:9"), "does not answer")
        assert "http://127.0.0.1:9" in message

    def test_a_silent_endpoint(self, flaky: S3Store, proxy: FlakyProxy) -> None:
        proxy.troubles.append(Trouble("slow", times=9, delay_s=3.0))
        refused(with_storage(flaky, read_timeout_s=1.0), "does not answer")

    def test_a_malformed_endpoint(self, store: S3Store) -> None:
        refused(with_storage(store, endpoint_url="localhost:8333"), "correct storage.endpoint_url")

    def test_a_bucket_name_that_is_none(self, store: S3Store) -> None:
        refused(replace(store, bucket="Not_A/Bucket"), "correct the bucket in sink.path")

    @pytest.mark.parametrize("header", ["If-None-Match", "If-Match"])
    def test_a_store_that_ignores_conditions(self, store: S3Store, header: str) -> None:
        """The header is taken off before signing, so the server never sees it, like one that does not know it."""
        events = client_for(impatient(store.storage)).meta.events

        def forget(request: Any, **_: object) -> None:
            del request.headers[header]

        events.register("before-sign.s3.PutObject", forget)
        try:
            message = refused(store, f"this store ignores {header}")
        finally:
            events.unregister("before-sign.s3.PutObject", forget)
        assert "SeaweedFS 4.48" in message
        assert list(store.list("")) == []


class TestLostAnswers:
    def test_a_create_whose_answer_was_lost_succeeds(self, flaky: S3Store, proxy: FlakyProxy) -> None:
        proxy.troubles.append(Trouble("lose_answer"))
        stat = flaky.put_if_absent("a", b"x")
        assert proxy.seen == ["PUT 200 lost", "PUT 412", "HEAD 200"]
        assert flaky.get("a") == b"x"
        assert flaky.head("a") == stat

    def test_a_create_that_lost_the_race_does_not(self, store: S3Store, flaky: S3Store, proxy: FlakyProxy) -> None:
        store.put_if_absent("a", b"x")
        proxy.troubles.append(Trouble("lose_answer"))
        with pytest.raises(AlreadyExists):
            flaky.put_if_absent("a", b"x")
        assert proxy.seen == ["PUT 412 lost", "PUT 412", "HEAD 200"]

    def test_a_swap_whose_answer_was_lost_succeeds(self, flaky: S3Store, proxy: FlakyProxy) -> None:
        first = flaky.put_if_absent("a", b"1")
        proxy.troubles.append(Trouble("lose_answer"))
        second = flaky.put_if_match("a", b"2", first.etag)
        assert proxy.seen[1:] == ["PUT 200 lost", "PUT 412", "HEAD 200"]
        flaky.put_if_match("a", b"3", second.etag)
        with pytest.raises(Changed, match="is now version"):
            flaky.put_if_match("a", b"4", second.etag)

    def test_what_never_gets_through_is_an_error(self, flaky: S3Store, proxy: FlakyProxy) -> None:
        proxy.troubles.append(Trouble("reset", times=9))
        with pytest.raises(StorageError, match="does not answer"):
            with_storage(flaky, max_attempts=2).put_if_absent("a", b"x")
        assert proxy.seen == ["PUT reset"] * 2

    def test_every_call_has_a_token_of_its_own(self, store: S3Store) -> None:
        for key in ("a", "b"):
            store.put(key, b"x")
        raw = [
            client_for(store.storage).head_object(Bucket=store.bucket, Key=f"{store.prefix}/{key}")["Metadata"]
            for key in ("a", "b")
        ]
        assert [set(each) for each in raw] == [{WRITER}] * 2
        assert raw[0] != raw[1]


class TestRetries:
    def test_a_busy_store_is_asked_again(self, flaky: S3Store, proxy: FlakyProxy) -> None:
        proxy.troubles += [Trouble("refuse", times=2), Trouble("reset"), Trouble("refuse", "GET", status=500)]
        flaky.put_if_absent("a", b"x")
        assert flaky.get("a") == b"x"
        assert proxy.seen == [*["PUT 503 SlowDown"] * 2, "PUT reset", "PUT 200", "GET 500 SlowDown", "GET 200"]

    def test_a_conflict_is_tried_again(self, flaky: S3Store, proxy: FlakyProxy) -> None:
        proxy.troubles.append(Trouble("refuse", times=2, status=409, code="ConditionalRequestConflict"))
        flaky.put_if_absent("a", b"x")
        assert proxy.seen == [*["PUT 409 ConditionalRequestConflict"] * 2, "PUT 200"]

    def test_a_conflict_that_stays_is_an_error(self, flaky: S3Store, proxy: FlakyProxy) -> None:
        proxy.troubles.append(Trouble("refuse", times=9, status=409, code="ConditionalRequestConflict"))
        with pytest.raises(StorageError, match="ConditionalRequestConflict"):
            with_storage(flaky, max_attempts=3).put_if_absent("a", b"x")
        assert len(proxy.seen) == 3

    def test_an_answer_that_breaks_off_is_read_again(self, flaky: S3Store, proxy: FlakyProxy) -> None:
        body = os.urandom(100_000)
        flaky.put("a", body)
        proxy.troubles.append(Trouble("cut_body", "GET", times=2))
        assert flaky.get("a") == body
        proxy.troubles.append(Trouble("cut_body", "GET"))
        assert flaky.get_range("a", 10, 50_000) == body[10:50_010]

    def test_one_that_always_breaks_off_is_an_error(self, flaky: S3Store, proxy: FlakyProxy) -> None:
        flaky.put("a", b"x" * 1000)
        proxy.troubles.append(Trouble("cut_body", "GET", times=9))
        with pytest.raises(StorageError, match="broke off"):
            with_storage(flaky, max_attempts=2).get("a")

    def test_a_refusal_is_told_at_once(self, flaky: S3Store, proxy: FlakyProxy) -> None:
        proxy.troubles.append(Trouble("refuse", times=9, status=403, code="ExpiredToken"))
        with pytest.raises(StorageError, match="the credentials have expired"):
            flaky.put("a", b"x")
        assert proxy.seen == ["PUT 403 ExpiredToken"]


class TestCredentials:
    def test_they_are_refreshed_while_the_store_is_in_use(
        self, store: S3Store, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        """A credential process that hands out the writer's keys first and the reader's later: that the writes stop
        working shows that the same store asked again."""
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.delenv(name)
        handed_out = _credential_process(tmp_path, s3_server)
        monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
        expiring = with_storage(store, profile="expiring")
        expiring.put("a", b"x")
        time.sleep(3.1)
        assert expiring.get("a") == b"x"
        with pytest.raises(StorageError, match="AccessDenied"):
            expiring.put("a", b"y")
        assert {"writer", "reader"} <= set(handed_out.read_text().split())


def _credential_process(folder: Path, server: S3Server) -> Path:
    """A profile `expiring` whose keys are the writer's for three seconds from its first use, then the reader's; returns
    the log of who was handed out."""
    log, script = folder / "handed-out", folder / "keys.py"
    keys = {
        "writer": (server.access_key, server.secret_key),
        "reader": (server.read_only_access_key, server.read_only_secret_key),
    }
    script.write_text(
        "import datetime, json, pathlib, time\n"
        f"log, first, keys = pathlib.Path({str(log)!r}), pathlib.Path({str(folder / 'first')!r}), {keys!r}\n"
        "first.exists() or first.touch()\n"
        "who = 'writer' if time.time() - first.stat().st_mtime < 3 else 'reader'\n"
        "log.open('a').write(who + '\\n')\n"
        "end = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(seconds=3)\n"
        "print(json.dumps({'Version': 1, 'AccessKeyId': keys[who][0], 'SecretAccessKey': keys[who][1],\n"
        "                  'SessionToken': '', 'Expiration': end.isoformat()}))\n"
    )
    (folder / "config").write_text(f"[profile expiring]\ncredential_process = {sys.executable} {script}\n")
    return log


class TestElsewhere:
    def test_another_process_gets_the_same_storage(self, store: S3Store) -> None:
        """No configuration but what is shipped with the job: the endpoint reaches a worker as it reaches the driver."""
        store.put("a", b"from here")
        code = (
            "import sys; from configs.job import Storage; from pipeline.store.open import open_store;"
            "store = open_store(sys.argv[1], Storage.model_validate_json(sys.argv[2]));"
            "store.put_if_absent('b', store.get('a') + b' to there')"
        )
        subprocess.run([sys.executable, "-c", code, store.url, store.storage.model_dump_json()], check=True)
        assert store.get("b") == b"from here to there"

    def test_s3a_and_slashes_lead_to_the_same_place(self, store: S3Store) -> None:
        store.put("a", b"x")
        url = store.url.replace("s3://", "s3a://")
        assert open_store(f"{url}//", store.storage).get("a") == b"x"

    def test_folder_marks_of_consoles_are_no_objects(self, store: S3Store) -> None:
        client = client_for(store.storage)
        client.put_object(Bucket=store.bucket, Key=f"{store.prefix}/data/", Body=b"")
        store.put("data/a", b"x")
        assert [stat.key for stat in store.list("")] == ["data/a"]

    def test_what_is_too_large_for_one_request_is_refused(self, store: S3Store) -> None:
        class Huge(bytes):
            def __len__(self) -> int:
                return MAX_PUT_BYTES + 1

        with pytest.raises(StorageError, match="over 5 GiB"):
            store.put("a", Huge())
        with pytest.raises(NotFound):
            store.head("a")


class TestClock:
    def test_a_denial_tells_the_time_and_a_missing_bucket_does_not(
        self, store: S3Store, flaky: S3Store, proxy: FlakyProxy
    ) -> None:
        proxy.troubles.append(Trouble("refuse", "GET", status=403, code="AccessDenied"))
        assert abs(flaky.now() - store.now()) < 60
        with pytest.raises(StorageError, match="NoSuchBucket"):
            replace(store, bucket="no-such-bucket").now()


class TestEncryption:
    def test_every_write_names_the_key(self, s3_environment: None) -> None:
        with mock_aws():
            key = "arn:aws:kms:us-east-1:111122223333:key/1234abcd"
            storage = Storage(region="us-east-1", kms_key_id=key)
            boto3.client("s3", region_name="us-east-1").create_bucket(Bucket="encrypted")
            store = S3Store("encrypted", "runs", storage)
            etag = store.put_if_absent("a", b"1").etag
            store.put_if_match("a", b"2", etag)
            store.put("b", b"3")
            for name in ("a", "b"):
                found = client_for(storage).head_object(Bucket="encrypted", Key=f"runs/{name}")
                assert found["ServerSideEncryption"] == "aws:kms"
                assert found["SSEKMSKeyId"] == key
