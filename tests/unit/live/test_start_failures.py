"""What a replica raised as it started, found in what Ray Serve says of it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from modelless.controller.live.cluster.start_failures import cause_of, last_error

RAISED = """\
The deployment failed to start 3 times in a row. This may be due to a problem with its constructor \
or initial health check failing. See controller logs for details. Error:
ray::ServeReplica:modelless:GatewayReplica.initialize_and_get_metadata() (pid=7, ip=127.0.0.1)
  File "/usr/lib/python3.11/concurrent/futures/_base.py", line 449, in result
    return self.__get_result()
           ^^^^^^^^^^^^^^^^^^^
RuntimeError: Traceback (most recent call last):
  File "/venv/ray/serve/_private/replica.py", line 1900, in initialize
    await self._user_callable_wrapper.initialize_callable()
  File "/modelless/controller/live/serve_app.py", line 74, in __init__
    log_to(Path(home), replica_id)
    ~~~~~~^^^^^^^^^^^^^^^^^^^^^^^^
"""


def deployments(status: str, message: str) -> dict[str, Any]:
    return {
        "GatewayReplica": SimpleNamespace(status=status, message=message),
        "Other": SimpleNamespace(status="HEALTHY", message=""),
    }


@pytest.mark.parametrize(
    ("raised", "says"),
    [
        (
            "modelless.common.errors.StoreError: the store is\n  locked; try again.\n",
            "StoreError: the store is locked; try again",
        ),
        ("FileExistsError: [Errno 17] File exists: '/a/run'", None),
        ("KeyError: 'a.b: c'", None),
        ("AssertionError", None),
    ],
)
def test_the_last_error_is_told_without_its_traceback(raised: str, says: str | None) -> None:
    assert last_error(RAISED + raised) == (says or raised)


def test_an_end_without_a_traceback_is_told_as_it_is() -> None:
    message = (
        "The deployment failed to start 3 times in a row. Error:\n"
        "The actor died because its node\nis out of memory.\n"
    )
    assert last_error(message) == "The actor died because its node is out of memory"
    assert last_error("no such message") == "no such message"


def test_a_long_one_is_cut() -> None:
    assert len(last_error(RAISED + "ValueError: " + "x" * 5000)) == 600


def test_the_deployment_that_failed_is_named() -> None:
    failed = deployments("DEPLOY_FAILED", RAISED + "OSError: no space")
    assert cause_of(failed) == "GatewayReplica: OSError: no space"


def test_without_one_that_failed_it_is_something_else() -> None:
    assert cause_of(deployments("UPDATING", "")) == ""
