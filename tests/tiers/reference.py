"""A fixed amount of work, by which processor times of machines of unlike speed are compared.

It does what the tests do most: compile and run Python, read and write JSON, hash, and ask SQLite.
"""

from __future__ import annotations

import ast
import hashlib
import json
import sqlite3

ROUNDS = 24
_SOURCE = "\n".join(
    f"class C{n}:\n    def total(self, values, factor={n}):\n        return sum(v * factor for v in values)"
    for n in range(400)
)


def work() -> None:
    """Do the reference workload: about a second of processor time."""
    for number in range(ROUNDS):
        tree = ast.parse(_SOURCE)
        code = compile(tree, "reference", "exec")
        exec(code, {"__name__": f"reference_{number}"})
        names = [node.id for node in ast.walk(tree) if isinstance(node, ast.Name)]
        rows = [(name, hashlib.sha256(f"{name}{at}".encode()).hexdigest()) for at, name in enumerate(names)]
        with sqlite3.connect(":memory:") as db:
            db.execute("CREATE TABLE names (name TEXT, digest TEXT)")
            db.executemany("INSERT INTO names VALUES (?, ?)", json.loads(json.dumps(rows)))
            db.execute("SELECT name, count(*), max(digest) FROM names GROUP BY name ORDER BY 2").fetchall()


if __name__ == "__main__":
    work()
