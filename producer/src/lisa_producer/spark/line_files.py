"""A file of lines of JSON for one task, in a directory that all executors share. It appears when the task succeeds."""

from uuid import uuid4

import pyarrow as pa
from pyarrow import fs

__all__ = ["LineFile", "remove_file"]


class LineFile:
    """Written aside, and moved into its place at the end, where it replaces that of an earlier try."""

    def __init__(self, place: str, name: str) -> None:
        self._files, directory = _locate(place)
        self._directory = directory
        self._path = f"{directory}/{name}"
        # Twins of a task, on two hosts, write at the same time.
        self._scratch = f"{directory}/_{name}.{uuid4().hex}"
        self._place = f"{place.rstrip('/')}/{name}"
        self._open: pa.NativeFile | None = None
        self._has_lines = False
        self.file: str | None = None
        """The file, after `close`, if there is any line."""

    def open(self) -> pa.NativeFile:
        """Begins the file. Raises OSError for a place that takes none."""
        if self._open is None:
            self._files.create_dir(self._directory, recursive=True)
            self._open = self._files.open_output_stream(self._scratch)
        return self._open

    def write(self, line: bytes) -> None:
        """Adds a line."""
        self.open().write(line + b"\n")
        self._has_lines = True

    def close(self) -> None:
        """Keeps the lines, as the task has succeeded; without any, removes those of an earlier try."""
        if not self._has_lines:
            self.discard()
            _remove(self._files, self._path)
        elif self._open is not None:
            self._open.close()
            self._files.move(self._scratch, self._path)
            self.file = self._place

    def discard(self) -> None:
        """Removes the lines, as the task has failed."""
        if self._open is not None:
            self._open.close()
            self._files.delete_file(self._scratch)


def remove_file(place: str) -> None:
    """Removes the file of a task, as its job has failed."""
    _remove(*_locate(place))


def _remove(files: fs.FileSystem, path: str) -> None:
    if files.get_file_info(path).type is not fs.FileType.NotFound:
        files.delete_file(path)


def _locate(place: str) -> tuple[fs.FileSystem, str]:
    if "://" in place or place.startswith("file:"):
        files, path = fs.FileSystem.from_uri(place)
        return files, path.rstrip("/")
    return fs.LocalFileSystem(), place.rstrip("/")
