import base64
import io
import os
import re
import socket
import ssl
import time
import urllib.error
import urllib.request
from urllib.parse import parse_qs, urlsplit

from e2b_desktop import Sandbox
from PIL import Image

PATIENCE = 60
TLS = ssl.create_default_context()


def until(what, look):
    """What `look` gives, as soon as that is something. A command that fails gives nothing."""
    seen, end = None, time.monotonic() + PATIENCE
    while time.monotonic() < end:
        try:
            if seen := look():
                return seen
        except Exception as error:
            seen = error
        time.sleep(0.2)
    raise AssertionError(f"{what}: {seen!r}")


def windows_with(desktop, program, title):
    return [one for one in desktop.get_application_windows(program) if title in desktop.get_window_title(one)]


def position(desktop, window):
    """Where the window is, without its title bar. xdotool counts that in twice."""
    said = desktop.commands.run(f"xwininfo -id {window}").stdout
    x, y = (int(re.search(rf"Absolute upper-left {axis}: +(-?\d+)", said)[1]) for axis in "XY")
    return x, y


def security_types(url):
    """Which ways to authenticate the VNC server offers to a browser: 1 is none, 2 a password."""
    host = urlsplit(url).hostname
    with socket.create_connection((host, 443), 20) as plain, TLS.wrap_socket(plain, server_hostname=host) as line:
        key = base64.b64encode(os.urandom(16)).decode()
        head = (
            f"GET /websockify HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: binary\r\n\r\n"
        )
        line.sendall(head.encode())
        answers = line.makefile("rb")
        status = answers.readline()
        assert b" 101 " in status, status
        while answers.readline().strip():
            pass

        def frame():
            kind, length = answers.read(2)
            assert kind == 0x82, kind
            return answers.read(length)

        version = frame()
        assert version == b"RFB 003.008\n", version
        line.sendall(bytes([0x82, 0x80 | len(version), 0, 0, 0, 0]) + version)
        offered = frame()
        if len(offered) == 1:
            offered += frame()
        return sorted(offered[1:])


def page(url):
    with urllib.request.urlopen(url, timeout=20, context=TLS) as answer:
        return answer.status, answer.read().decode()


def refused(url):
    try:
        page(url)
    except urllib.error.HTTPError as error:
        return error.code == 502
    return False


desktop = Sandbox.create(resolution=(1280, 800))
try:
    picture = Image.open(io.BytesIO(desktop.screenshot()))
    assert (picture.format, picture.size) == ("PNG", (1280, 800)), picture
    until(
        "a desktop", lambda: len(Image.open(io.BytesIO(desktop.screenshot())).convert("RGB").getcolors(1 << 20)) > 100
    )
    assert desktop.get_screen_size() == (1280, 800)
    desktop.move_mouse(300, 200)
    assert desktop.get_cursor_position() == (300, 200)

    # a text editor: typed into, and saved by a hotkey
    desktop.files.write("/home/user/notes.txt", "hello\n")
    desktop.open("/home/user/notes.txt")
    [editor] = until("an editor", lambda: windows_with(desktop, "mousepad", "notes.txt"))
    until("its focus", lambda: "notes.txt" in desktop.get_window_title(desktop.get_current_window_id()))
    desktop.press(["ctrl", "end"])
    desktop.write("typed by 'a program'")
    desktop.press("enter")
    desktop.press(["ctrl", "s"])
    until("a saved file", lambda: desktop.files.read("/home/user/notes.txt") == "hello\ntyped by 'a program'\n")

    # a terminal, and back to the editor with the mouse
    desktop.launch("xfce4-terminal")
    [terminal] = until("a terminal", lambda: windows_with(desktop, "xfce4-terminal", "Terminal"))
    until("its focus", lambda: "Terminal" in desktop.get_window_title(desktop.get_current_window_id()))
    desktop.write("echo $((6 * 7)) > answer.txt")
    desktop.press("enter")
    until("an answer", lambda: desktop.files.read("/home/user/answer.txt") == "42\n")
    x, y = position(desktop, editor)
    desktop.left_click(x + 100, y + 10)  # its menu bar
    desktop.press("escape")
    until("the editor's focus", lambda: "notes.txt" in desktop.get_window_title(desktop.get_current_window_id()))
    desktop.drag((x + 3, y + 38), (x + 300, y + 200))  # all of its text
    desktop.write("replaced")
    desktop.press(["ctrl", "s"])
    until("a saved file", lambda: desktop.files.read("/home/user/notes.txt") == "replaced")
    desktop.scroll("down", 3)
    desktop.wait(100)

    # the screen in a browser, for everybody and with a password
    desktop.stream.start()
    url = desktop.stream.get_url()
    status, text = page(url)
    assert (status, "noVNC" in text) == (200, True), text[:500]
    assert page(url.partition("/vnc.html")[0] + "/core/rfb.js")[0] == 200
    assert security_types(url) == [1]
    desktop.stream.stop()
    until("a closed port", lambda: refused(url))
    desktop.stream.start(require_auth=True)
    url = desktop.stream.get_url(auth_key=desktop.stream.get_auth_key(), view_only=True)
    asked = parse_qs(urlsplit(url).query)
    assert asked["password"] == [desktop.stream.get_auth_key()], url
    assert page(url)[0] == 200
    assert security_types(url) == [2]

    # windows are still there after a pause, and are typed into
    shown = [desktop.get_window_title(one) for one in (editor, terminal)]
    desktop.pause()
    desktop.connect()
    assert [desktop.get_window_title(one) for one in (editor, terminal)] == shown
    assert security_types(url) == [2]
    desktop.write("still here")
    desktop.press(["ctrl", "s"])
    until("a saved file", lambda: "still here" in desktop.files.read("/home/user/notes.txt"))
    desktop.stream.stop()
finally:
    desktop.kill()
