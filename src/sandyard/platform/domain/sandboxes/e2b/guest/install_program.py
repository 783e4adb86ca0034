# Install a program, unless it is there already, and run it. If that is impossible, run it without a file.
# Arguments: PATH MARK ARGUMENTS. This text is put between single quotes.
import binascii
import os
import sys

source, path = binascii.a2b_base64(os.environ.pop("SANDYARD_PROGRAM")), sys.argv[1]
try:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    if os.stat(os.path.dirname(path)).st_uid == os.geteuid():
        os.chmod(os.path.dirname(path), 0o1777)
    if not (os.path.isfile(path) and os.stat(path).st_uid == os.geteuid() and open(path, "rb").read() == source):
        new = path + "." + str(os.getpid())
        with open(new, "wb") as file:
            file.write(source)
        os.rename(new, path)
    os.execv(sys.executable, [sys.executable, "-I", "-S", path] + sys.argv[2:])
except OSError:
    pass
sys.argv = sys.argv[1:]
exec(compile(source, path, "exec"), {"__name__": "__main__"})
