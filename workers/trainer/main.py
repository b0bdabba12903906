"""A trainer child: one quantize, finetune, evaluate, fuse, merge or export task, then the end.

Started by exec with pipes: the task and wishes come in on stdin (control.py), events go out on stdout
(report.py), everything libraries print goes to stderr. The main thread owns every mlx call. Memory comes
back surely because the process ends.
"""

from __future__ import annotations

import errno
import importlib
import os
import sys
import traceback

from mlxplatform.inference.contract import Refusal
from workers.trainer import report
from workers.trainer.control import Control, Stop
from workers.trainer.report import Explained

#: Task name → module with ``run(task, control) -> dict``.
TASKS = {
    "quantize": "workers.trainer.quantize",
    "finetune": "workers.trainer.finetune",
    "evaluate": "workers.trainer.evaluate",
    "fuse": "workers.trainer.fuse",
    "merge": "workers.trainer.combine",
    "export": "workers.trainer.combine",
}
#: What a file system says that takes no more: no space, over quota, over the process's limit, read-only.
UNWRITABLE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS})
#: How mlx's writers of safetensors and of GGUF begin to say the same.
FAILED_WRITES = (
    "[write]",
    "[save_safetensors] Failed to open",
    "[save_gguf] gguf_create failed",
    "[save_gguf] gguf_append_tensor_info failed",
    "[save_gguf] gguf_append_tensor_data failed",
)


def main() -> int:
    report.claim_stdout()
    control = Control()
    task = control.read_task()
    from workers.engine import platform

    on = platform.prepare(task.get("blas", ""), task.get("threads", 0))
    task["device"] = on.device
    control.on_yield = platform.give_memory_back
    module = importlib.import_module(TASKS[task["task"]])
    try:
        result = module.run(task, control)
    except Stop as stop:
        report.emit("stopped", op=stop.op)
        return 0
    except (Explained, Refusal) as failure:
        return report.failed(failure.code, failure.message, failure.param)
    except OSError as error:
        what = ("cannot_write", "Writing failed") if error.errno in UNWRITABLE else ("files_unusable", "A file cannot be used")
        return report.failed(what[0], f"{what[1]}: {(error.strerror or 'input/output error').lower()}.")
    except RuntimeError as error:
        # mlx's writers know no OSError; what else they raise is a bug of ours.
        if str(error).startswith(FAILED_WRITES):
            return report.failed("cannot_write", "Writing failed: the disk is full, or cannot be written to.")
        traceback.print_exc()
        return 1
    except Exception:  # the outermost edge of the process: whatever it is, the supervisor gets a status and a trace
        traceback.print_exc()
        return 1
    report.done(**result)
    return 0


if __name__ == "__main__":
    status = main()
    sys.stderr.flush()
    # No interpreter shutdown: the control thread waits in a read, and mlx's streams may abort a process that tears down.
    os._exit(status)
