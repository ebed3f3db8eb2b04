import pytest

from rebaser_server.compute.spark.table_tasks import task_count


@pytest.mark.parametrize(
    ("files", "size", "tasks"),
    [
        (1, 0, 1),
        (1, 64 << 20, 1),
        (365, 365 * 5_000, 6),
        (4, 40 << 20, 3),
        (40, 2_560 << 20, 40),
    ],
)
def test_many_small_files_are_one_task(files: int, size: int, tasks: int) -> None:
    """And each large one is a task's own."""
    assert task_count(files, size) == tasks
