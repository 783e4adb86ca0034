"""The gVisor runtime: each sandbox runs on a kernel of its own, which is a program on the host (runsc).

`runtime` starts sandboxes; `bundle` describes one for runsc; `child` prepares its files and its network (`link`) and
becomes runsc; `connections` reach the agent; `checkpoints` move memory to disk, with the help of `control`, the socket of
a running sandbox; `agent_files` packs the agent with the Python that runs it, because an image need not contain any;
`runsc` finds the program.
"""
