"""What every store promises, asked of each: local disk, a real S3 server, and the faulty store without faults."""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from configs.errors import StorageError
from configs.job import Storage
from pipeline.store.base import AlreadyExists, Changed, NotFound, Stat, Store
from pipeline.store.faulty import FaultyStore
from pipeline.store.local import LocalStore
from pipeline.store.open import open_store


@pytest.fixture(params=["local", "faulty", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if request.param == "local":
        return LocalStore(str(tmp_path))
    if request.param == "faulty":
        return FaultyStore(LocalStore(str(tmp_path)))
    bucket = request.getfixturevalue("s3_bucket")
    return open_store(bucket.url, bucket.storage)


def keys(store: Store, prefix: str = "") -> list[str]:
    return [stat.key for stat in store.list(prefix)]


def race(writers: int, write: Callable[[int], Stat]) -> list[Stat | BaseException]:
    """What each of `writers` threads got from writing at the same moment."""
    start = threading.Barrier(writers)

    def run(number: int) -> Stat | BaseException:
        start.wait()
        try:
            return write(number)
        except (AlreadyExists, Changed) as error:
            return error

    with ThreadPoolExecutor(writers) as pool:
        return list(pool.map(run, range(writers)))


class TestCreate:
    def test_what_was_put_is_read_back_whole(self, store: Store) -> None:
        body = bytes(range(256)) * 5000
        put = store.put_if_absent("data/code-000001.parquet", body)
        assert store.get("data/code-000001.parquet") == body
        found = store.head("data/code-000001.parquet")
        assert (found.key, found.size, found.etag) == ("data/code-000001.parquet", len(body), put.etag)

    def test_a_second_create_fails_and_changes_nothing(self, store: Store) -> None:
        first = store.put_if_absent("a", b"first")
        with pytest.raises(AlreadyExists, match="a exists"):
            store.put_if_absent("a", b"second")
        assert store.get("a") == b"first"
        assert store.head("a").etag == first.etag

    def test_eight_racers_have_one_winner_and_its_bytes_stay(self, store: Store) -> None:
        for number in range(2):
            key = f"race-{number}"
            got = race(8, lambda writer, key=key: store.put_if_absent(key, b"%d" % writer * 1000))
            winners = [writer for writer, stat in enumerate(got) if isinstance(stat, Stat)]
            assert len(winners) == 1
            assert store.get(key) == b"%d" % winners[0] * 1000

    def test_after_a_delete_it_can_be_created_again(self, store: Store) -> None:
        store.put_if_absent("a", b"first")
        store.delete("a")
        store.put_if_absent("a", b"second")
        assert store.get("a") == b"second"

    def test_an_empty_object_is_an_object(self, store: Store) -> None:
        store.put_if_absent("empty", b"")
        assert store.get("empty") == b""
        assert store.head("empty").size == 0
        assert keys(store) == ["empty"]
        with pytest.raises(AlreadyExists):
            store.put_if_absent("empty", b"more")


class TestReplace:
    def test_a_chain_of_swaps_and_a_stale_etag(self, store: Store) -> None:
        etags = [store.put_if_absent("lease", b"0").etag]
        for number in range(1, 6):
            etags.append(store.put_if_match("lease", b"%d" % number, etags[-1]).etag)
        assert len(set(etags)) == len(etags)
        for stale in etags[:-1]:
            with pytest.raises(Changed):
                store.put_if_match("lease", b"stale", stale)
        assert store.get("lease") == b"5"

    def test_etags_of_put_head_and_list_are_the_same(self, store: Store) -> None:
        put = store.put("a", b"x")
        assert store.head("a").etag == put.etag
        assert next(store.list("a")).etag == put.etag
        assert store.put_if_match("a", b"y", put.etag).etag == store.head("a").etag

    def test_racing_swaps_have_one_winner(self, store: Store) -> None:
        etag = store.put_if_absent("lease", b"start").etag
        got = race(4, lambda writer: store.put_if_match("lease", b"%d" % writer, etag))
        winners = [writer for writer, stat in enumerate(got) if isinstance(stat, Stat)]
        assert len(winners) == 1
        assert store.get("lease") == b"%d" % winners[0]

    def test_what_is_gone_cannot_be_swapped(self, store: Store) -> None:
        etag = store.put_if_absent("a", b"x").etag
        store.delete("a")
        with pytest.raises(Changed, match="is gone"):
            store.put_if_match("a", b"y", etag)
        with pytest.raises(NotFound):
            store.head("a")

    def test_put_overwrites(self, store: Store) -> None:
        store.put("ledger", b"long first version")
        store.put("ledger", b"second")
        assert store.get("ledger") == b"second"

    def test_readers_see_whole_versions_only(self, store: Store) -> None:
        versions = [bytes([number]) * 200_000 for number in range(20)]
        store.put("a", versions[0])
        done = threading.Event()

        def read() -> int:
            reads = 0
            while not done.is_set():
                body = store.get("a")
                assert body == bytes([body[0]]) * 200_000
                assert store.head("a").size == 200_000
                reads += 1
            return reads

        with ThreadPoolExecutor(2) as pool:
            readers = [pool.submit(read) for _ in range(2)]
            try:
                for version in versions:
                    store.put("a", version)
            finally:
                done.set()
            assert all(reader.result() > 0 for reader in readers)


class TestRead:
    @pytest.mark.parametrize(
        ("start", "length", "expected"),
        [(0, 10, b"0123456789"), (3, 4, b"3456"), (8, 10, b"89"), (10, 5, b""), (50, 5, b""), (4, 0, b"")],
    )
    def test_ranges_end_where_the_object_ends(self, store: Store, start: int, length: int, expected: bytes) -> None:
        store.put_if_absent("a", b"0123456789")
        assert store.get_range("a", start, length) == expected

    def test_a_range_of_an_empty_object_is_empty(self, store: Store) -> None:
        store.put_if_absent("a", b"")
        assert store.get_range("a", 0, 10) == b""

    def test_a_range_of_a_version_is_of_that_version_or_refused(self, store: Store) -> None:
        first = store.put_if_absent("a", b"0123456789").etag
        assert store.get_range("a", 3, 4, first) == b"3456"
        second = store.put_if_match("a", b"abcdefghij", first).etag
        with pytest.raises(Changed, match="a was replaced while it was read"):
            store.get_range("a", 3, 4, first)
        assert store.get_range("a", 3, 4, second) == b"defg"
        store.delete("a")
        with pytest.raises(NotFound):
            store.get_range("a", 3, 4, second)

    @pytest.mark.parametrize("length", [0, 5])
    def test_what_does_not_exist_is_not_found(self, store: Store, length: int) -> None:
        store.put_if_absent("folder/a", b"x")
        for key in ("nothing", "folder", "folder/b", "nothing/at/all"):
            with pytest.raises(NotFound, match=key):
                store.get(key)
            with pytest.raises(NotFound, match=key):
                store.head(key)
            with pytest.raises(NotFound, match=key):
                store.get_range(key, 0, length)


class TestList:
    def test_keys_come_in_order_with_any_prefix(self, store: Store) -> None:
        wanted = ["a/b", "a", "a-b", "a.b", "ab", "a0/z", "Z", "_plan/CURRENT", "a/c/d"]
        made = [key for key in wanted if key != "a"]  # on disk a name is a file or a folder
        for key in made:
            store.put_if_absent(key, key.encode())
        assert keys(store) == sorted(made)
        assert keys(store, "a/") == ["a/b", "a/c/d"]
        assert keys(store, "a") == ["a-b", "a.b", "a/b", "a/c/d", "a0/z", "ab"]
        assert keys(store, "a/c") == ["a/c/d"]
        assert keys(store, "a/b/") == keys(store, "none/") == keys(store, "zzz") == []

    def test_more_than_a_page(self, store: Store) -> None:
        wanted = [f"data/code-{number:06d}.parquet" for number in range(1100)]
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda key: store.put(key, b"x"), wanted))
        listed = list(store.list("data/"))
        assert [stat.key for stat in listed] == wanted
        assert {stat.size for stat in listed} == {1}

    def test_an_empty_store_lists_nothing(self, store: Store) -> None:
        assert keys(store) == []


class TestKeys:
    @pytest.mark.parametrize("key", ["data/üñï-000001.parquet", "emoji/😀", "with space", "q?x=1&y#z+%20", "e\u0301/é"])
    def test_unusual_keys_are_carried(self, store: Store, key: str) -> None:
        store.put_if_absent(key, b"x")
        assert store.get(key) == b"x"
        assert keys(store) == [key]
        store.delete(key)
        assert keys(store) == []

    @pytest.mark.parametrize(
        "key",
        [
            "",
            "/a",
            "a/",
            "a//b",
            "..",
            "a/../b",
            "./a",
            ".hidden",
            "a\nb",
            "a\0b",
            "\ud83d",
            "x" * 256,
            "x/" * 520 + "x",
        ],
    )
    def test_odd_keys_are_refused_everywhere(self, store: Store, key: str) -> None:
        for call in (
            lambda: store.put_if_absent(key, b"x"),
            lambda: store.put_if_match(key, b"x", "etag"),
            lambda: store.put(key, b"x"),
            lambda: store.get(key),
            lambda: store.get_range(key, 0, 1),
            lambda: store.head(key),
            lambda: store.delete(key),
            lambda: store.child(key),
        ):
            with pytest.raises(StorageError, match="rename it"):
                call()
        assert keys(store) == []


class TestDelete:
    def test_twice_is_the_same_as_once(self, store: Store) -> None:
        store.put_if_absent("folder/a", b"x")
        store.delete("folder/a")
        store.delete("folder/a")
        store.delete("folder")
        store.delete("never/was")
        assert keys(store) == []

    def test_it_leaves_the_others(self, store: Store) -> None:
        store.put_if_absent("a/1", b"x")
        store.put_if_absent("a/2", b"y")
        store.delete("a/1")
        assert keys(store) == ["a/2"]


class TestStore:
    def test_a_child_is_the_store_of_a_sub_folder(self, store: Store) -> None:
        child = store.child("demo-1").child("deeper/still")
        child.put_if_absent("a/b", b"x")
        assert child.url == f"{store.url}/demo-1/deeper/still"
        assert keys(store) == ["demo-1/deeper/still/a/b"]
        assert keys(child) == ["a/b"]
        assert store.get("demo-1/deeper/still/a/b") == b"x"

    def test_children_are_the_sub_folders_that_hold_something(self, store: Store) -> None:
        for key in ("b/1", "a-b/deep/er/1", "a/1", "file", "gone/1"):
            store.put(key, b"x")
        store.delete("gone/1")
        # SeaweedFS goes on naming an emptied folder for a while.
        assert [name for name in store.children() if name != "gone"] == ["a", "a-b", "b"]
        assert list(store.child("a-b").children()) == ["deep"]
        assert list(store.child("none").children()) == []

    def test_it_travels_to_another_process(self, store: Store) -> None:
        store.put_if_absent("a", b"x")
        copy = pickle.loads(pickle.dumps(store))
        assert copy.get("a") == b"x"
        assert copy.url == store.url
        assert copy.child("c").url == store.child("c").url

    def test_it_opens_again_by_its_url(self, store: Store) -> None:
        store.put_if_absent("a", b"x")
        inner = store.inner if isinstance(store, FaultyStore) else store
        storage = getattr(inner, "storage", Storage())
        assert open_store(store.url, storage).get("a") == b"x"
        assert open_store(f"{store.url}/", storage) == inner

    def test_modified_and_now_are_one_clock(self, store: Store) -> None:
        before = store.now()
        stat = store.put_if_absent("a", b"x")
        time.sleep(0.02)
        after = store.now()
        assert before - 1 <= stat.modified <= after
        assert abs(store.head("a").modified - stat.modified) <= 1
        assert keys(store) == ["a"]

    def test_check_leaves_nothing_behind(self, store: Store) -> None:
        store.child("run").check()
        store.child("run").check()
        assert keys(store) == []
