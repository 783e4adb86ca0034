"""The code interpreter: the server on port 49999 of a sandbox that runs code in Jupyter kernels.

Two programs in a template, neither of which the engine imports:
- the server (this folder): HTTP on one side, Jupyter messages on the other; standard library only, so that packages
  that a user installs cannot break it;
- `kernels`: runs in the template's own Python, with the user's packages: a fork server that creates kernels in
  milliseconds, and the kernels for Python, JavaScript, TypeScript and Bash.
Every other installed kernel (`kernel.json`, as Jupyter defines it) is supported as well.
"""
