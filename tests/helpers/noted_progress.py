"""A job's progress that keeps what was recorded of it."""

from rebaser_server.runtime.progress import JobProgress


class NotedProgress(JobProgress):
    """Notes done and total after each record, also of its parts."""

    def __init__(self, total: int) -> None:
        super().__init__(total)
        self.seen: list[tuple[int, int]] = []

    def record(self, done: int) -> None:
        super().record(done)
        self.seen.append((self.done, self.total))
