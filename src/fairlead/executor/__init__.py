"""Runs commands as local processes: a shim per job, confined, as the submitting user.

    executor = LocalExecutor(folder)
    executor.start(Job(id="p7", run="lab/train", owner="team-a", command=("python", "train.py"),
                       devices=("host#0",), user="ada"))
    executor.poll()

The shim process imports this package too and must stay small, so nothing is imported here.
"""
