"""The code interpreter: what answers on port 49999 of a sandbox and runs code in Jupyter kernels.

Two programs of a template, neither of which the engine imports:
- the server (this folder): HTTP on one side, Jupyter's messages on the other; standard library only, so that nothing a
  user installs can break it;
- `kernels`: what runs in the template's own Python, with the user's packages: a fork server that makes kernels in
  milliseconds, and the kernels for Python, JavaScript, TypeScript and Bash.
Every other kernel that is installed (`kernel.json`, as Jupyter knows them) is served as well.
"""
