"""What of Ray's inside is set from outside; a new version of Ray may have renamed it."""

from __future__ import annotations

import inspect

from ray.data._internal.execution import streaming_executor_state


def test_the_pause_of_ray_datas_loop_is_read_where_it_waits() -> None:
    source = inspect.getsource(streaming_executor_state.process_completed_tasks)
    assert "timeout=WAIT_FOR_TASK_COMPLETION_TIMEOUT_S" in source
