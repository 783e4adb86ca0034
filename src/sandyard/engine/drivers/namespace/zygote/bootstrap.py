"""The entry point of the zygote's interpreter: `python -I -S bootstrap.py ROOT GUEST TITLE`, without site-packages.

The parent packages of the zygote are imported without running them: what they import is for the engine, may need
packages that are missing here, and would use memory in every sandbox.
"""

import sys
import types

_PARENT_PACKAGES = ("sandyard", "sandyard.engine", "sandyard.engine.drivers", "sandyard.engine.drivers.namespace")


def bootstrap(root: str, guest: str, title: str) -> None:
    sys.path.insert(0, root)
    for name in _PARENT_PACKAGES:
        package = types.ModuleType(name)
        package.__path__ = [f"{root}/{name.replace('.', '/')}"]
        sys.modules[name] = package
    from sandyard.engine.drivers.namespace.zygote.main import main  # noqa: PLC0415 (only now can it be found)

    main(guest, title)


if __name__ == "__main__":
    bootstrap(*sys.argv[1:])
