"""What agents write and ask, made by seed: the same seed gives the same texts, files and questions."""

from __future__ import annotations

from dataclasses import dataclass

from faker import Faker

COLLECTIONS = ("documents", "memory", "workspace")
_SUBJECTS = ("pensions", "harbour fees", "bee keeping", "canal locks", "orchards", "archives", "clock repair")


@dataclass(frozen=True, slots=True)
class File:
    """A text file; `name` is different each time."""

    name: str
    data: bytes


class Content:
    """One agent's texts."""

    def __init__(self, seed: int) -> None:
        self._faker = Faker("en_GB")
        self._faker.seed_instance(seed)
        self.random = self._faker.random

    def question(self) -> str:
        """A question of a few words, mostly about something that is there."""
        words = self._faker.words(self.random.randint(1, 5))
        return f"{self.random.choice(_SUBJECTS)} {' '.join(words)}"

    def words(self) -> str:
        return " ".join(self._faker.words(2))

    def note(self) -> str:
        return f"{self.random.choice(_SUBJECTS).capitalize()}: {self._faker.paragraph(4)}"

    def file(self, kilobytes: int) -> File:
        """A Markdown file of about that size."""
        parts = [f"# {self._faker.sentence(4)}"]
        while sum(len(part) for part in parts) < kilobytes * 1024:
            parts.append(f"## {self._faker.sentence(3)}\n\n{self._faker.paragraph(12)}")
        return File(f"{self._faker.uuid4()}.md", "\n\n".join(parts).encode())

    def tags(self) -> list[str]:
        return sorted(set(self._faker.words(self.random.randint(1, 2))))

    def collection(self) -> str:
        return str(self.random.choice(COLLECTIONS))
