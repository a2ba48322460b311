"""The items that one transaction writes: those that are new by one statement, those that exist by another."""

import sqlite3
from collections.abc import Mapping
from typing import TypeAlias

from feedback.model import Item

Place: TypeAlias = tuple[int, str]
"""A Session's key and a message id."""

_EXISTS = "SELECT 1 FROM item WHERE session = ? AND message_id = ?"
_UPDATE = """UPDATE item SET rating = ?, note = ?, version = ?, created_at = ?, updated_at = ?
             WHERE session = ? AND message_id = ?"""
_INSERT = """INSERT INTO item (rating, note, version, created_at, updated_at, session, message_id, position)
             VALUES (?, ?, ?, ?, ?, ?, ?, ?)"""
_DELETE = "DELETE FROM item WHERE session = ? AND message_id = ?"
_DELETE_ALL = "DELETE FROM item WHERE session = ?"


class ItemWrites:
    """Collects what is put, and writes it at the latest by `flush`. `added` counts by how many items there are more."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._exist: dict[Place, bool] = {}
        self._inserts: list[tuple[object, ...]] = []
        self._updates: list[tuple[object, ...]] = []
        self.added = 0

    def know(self, exist: Mapping[Place, bool]) -> None:
        """Which items there are: nobody has to look again."""
        self._exist |= exist

    def put(self, key: int, item: Item, position: int) -> None:
        """Write an item; `position` is its place if it is new, else it keeps the one that it has."""
        place = (key, item.message_id)
        row = (item.rating, item.note, item.version, item.created_at, item.updated_at, *place)
        if place not in self._exist:
            self._exist[place] = self._connection.execute(_EXISTS, place).fetchone() is not None
        if self._exist[place]:
            self._updates.append(row)
        else:
            self._inserts.append((*row, position))
            self._exist[place] = True
            self.added += 1

    def delete(self, key: int, message_id: str) -> None:
        """Remove an item, if there is one."""
        self.flush()
        self.added -= self._connection.execute(_DELETE, (key, message_id)).rowcount
        self._exist[key, message_id] = False

    def delete_all(self, key: int) -> None:
        """Remove all items of a Session."""
        self.flush()
        self.added -= self._connection.execute(_DELETE_ALL, (key,)).rowcount
        self._exist = {place: exists and place[0] != key for place, exists in self._exist.items()}

    def flush(self) -> None:
        """Write what was put: new ones first, for they may have been put again."""
        if self._inserts:
            self._connection.executemany(_INSERT, self._inserts)
        if self._updates:
            self._connection.executemany(_UPDATE, self._updates)
        self._inserts, self._updates = [], []
