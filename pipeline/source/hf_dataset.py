"""A dataset folder of Hugging Face datasets (`save_to_disk`): `state.json` names Arrow stream files, in order.

Read without that library. A folder of several splits (`dataset_dict.json`) holds one such folder per split; the job
names the one it wants by its path.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from configs.errors import SourceError
from configs.job import Storage
from pipeline.source.chunk import TableChunk
from pipeline.source.files import SourceFile, find_files, read_small
from pipeline.source.tables import batch_rows, table_chunk

STATE = "state.json"
SPLITS = "dataset_dict.json"


def hf_files(folder: str, base_dir: Path, storage: Storage) -> list[SourceFile] | None:
    """The Arrow files of a saved dataset, or None if the folder is none.

    Raises:
        SourceError: it holds several splits, or its state is of a kind that only the library can read.
    """
    splits = read_small(f"{folder.rstrip('/')}/{SPLITS}", base_dir, storage)
    if splits is not None:
        names: list[str] = json.loads(splits)["splits"]
        raise SourceError(
            f"source.path {folder} holds the splits {', '.join(names)}; name one: {folder.rstrip('/')}/{names[0]}"
        )
    text = read_small(f"{folder.rstrip('/')}/{STATE}", base_dir, storage)
    if text is None:
        return None
    state: dict[str, Any] = json.loads(text)
    if state.get("_indices_data_files") or "_data_files" not in state:
        raise SourceError(
            f"source.path {folder}: saved with an index or by an old version; save it again: save_to_disk"
        )
    paths = [f"{folder.rstrip('/')}/{each['filename']}" for each in state["_data_files"]]
    return [file for path in paths for file in find_files(path, base_dir, storage)]


def read_arrow(
    stream: pa.NativeFile, file: int, path: str, first_ordinal: int, chunk_bytes: int
) -> Iterator[TableChunk]:
    """The rows of one Arrow stream file; their line is their 1-based number in the file.

    Raises:
        SourceError: it is no Arrow stream, or broken.
    """
    line = 0
    try:
        for batch in pa.ipc.open_stream(stream):
            rows = batch_rows(batch.nbytes, len(batch), chunk_bytes)
            for start in range(0, len(batch), rows):
                piece = batch.slice(start, rows)
                yield table_chunk(piece, file, first_ordinal + line, line + 1)
                line += len(piece)
    except (pa.ArrowException, OSError) as error:
        raise SourceError(f"cannot read {path} as an Arrow stream (after row {line}): {error}") from None
