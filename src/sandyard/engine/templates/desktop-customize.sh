#!/bin/sh
# Puts the desktop's layer together, in mount and pid namespaces that end with it.
#   $1 the base's root   $2 the work directory, with apt's settings; rootfs/ for the layer
#   $3 the packages to install   $4 those to install if the archives have them
set -eu
base=$1 work=$2 packages=$3 wanted=$4
. "${0%/*}/layered.sh"
open_root "$base" "$work"
open_archives "$work"

echo "step 0.02 reading package lists"
# noVNC's package is only unpacked: installed, it brings Debian's own Node
APT_CONFIG=/tmp/apt.conf DEBIAN_FRONTEND=noninteractive PACKAGES=$packages WANTED=$wanted chroot "$root" sh -euc '
  apt-get -q update
  for name in $WANTED; do
    apt-cache show --no-all-versions "$name" >/dev/null 2>&1 && PACKAGES="$PACKAGES $name" || echo "no package $name here"
  done
  echo "step 0.06-0.40 downloading packages"
  apt-get -qy install --no-install-recommends --download-only $PACKAGES
  mkdir /tmp/novnc && cd /tmp/novnc
  apt-get -q -o APT::Sandbox::User=root download novnc && dpkg-deb -x ./*.deb tree
  mkdir -p /opt/noVNC && cp -a tree/usr/share/novnc/. /opt/noVNC/ && cp tree/usr/share/doc/novnc/copyright /opt/noVNC/
  cd / && rm -rf /tmp/novnc
  echo "step 0.40-0.90 installing packages"
  apt-get -qy install --no-install-recommends $PACKAGES
  apt-get clean'
close_archives

echo "step 0.92 adding settings"
# What clients start to show the desktop in a browser: noVNC 1.0 has it under another name, and later ones start several programs
rm -rf "$root/opt/noVNC/utils" && mkdir -p "$root/opt/noVNC/utils"
cat >"$root/opt/noVNC/utils/novnc_proxy" <<'EOF'
#!/bin/sh
# novnc_proxy --listen [HOST:]PORT --vnc HOST:PORT --web DIRECTORY
listen=6080 vnc=localhost:5900 web=/opt/noVNC
while [ $# -gt 0 ]; do
  case $1 in
    --listen) listen=$2 && shift ;;
    --vnc) vnc=$2 && shift ;;
    --web) web=$2 && shift ;;
    *) echo "novnc_proxy: unknown option $1" >&2 && exit 2 ;;
  esac
  shift
done
exec websockify --web "$web" "$listen" "$vnc"
EOF
chmod 0755 "$root/opt/noVNC/utils/novnc_proxy"
ln -sf vnc.html "$root/opt/noVNC/index.html"

settings=$root/etc/xdg/xfce4/xfconf/xfce-perchannel-xml
mkdir -p "$root/etc/xdg/autostart"
sed -i '/"ThemeName"\|"IconThemeName"/s/value="[^"]*"/value="Adwaita"/' "$settings/xsettings.xml"
cat >"$settings/xfwm4.xml" <<'EOF'
<?xml version="1.0" encoding="UTF-8"?>
<channel name="xfwm4" version="1.0">
  <property name="general" type="empty">
    <property name="use_compositing" type="bool" value="false"/>
    <property name="workspace_count" type="int" value="1"/>
  </property>
</channel>
EOF
# logging out asks nothing and keeps nothing: a client that starts the session anew wants it empty
sed -i '/name="FailsafeSessionName"/a\
    <property name="SaveOnExit" type="bool" value="false"/>\
    <property name="PromptOnLogout" type="bool" value="false"/>' "$settings/xfce4-session.xml"
mkdir -p "$root/tmp/.ICE-unix" "$root/tmp/.X11-unix" # root's, or X and its session managers distrust them
chmod 1777 "$root/tmp/.ICE-unix" "$root/tmp/.X11-unix"
# a program that looks at the screen has no keyboard to wake it with
cat >"$root/etc/xdg/autostart/no-blanking.desktop" <<'EOF'
[Desktop Entry]
Type=Application
Name=Keep the screen on
Exec=xset s off s noblank
NoDisplay=true
EOF
printf 'WebBrowser=firefox\nTerminalEmulator=xfce4-terminal\nFileManager=Thunar\n' >"$root/etc/xdg/xfce4/helpers.rc"
if [ -d "$root/usr/lib/firefox-esr" ]; then
  mkdir -p "$root/etc/firefox/policies"
  cat >"$root/etc/firefox/policies/policies.json" <<'EOF'
{"policies": {
  "DisableAppUpdate": true, "DisableFirefoxStudies": true, "DisablePocket": true, "DisableTelemetry": true,
  "DontCheckDefaultBrowser": true, "NoDefaultBookmarks": true, "OverrideFirstRunPage": "", "OverridePostUpdatePage": "",
  "UserMessaging": {"ExtensionRecommendations": false, "FeatureRecommendations": false, "SkipOnboarding": true},
  "FirefoxHome": {"SponsoredTopSites": false, "SponsoredPocket": false, "Pocket": false, "Snippets": false}
}}
EOF
fi

# A template that lacks what is promised is not published. The screen's socket is the network namespace's, and the session's
# daemons end with their pid namespace
echo "step 0.94 trying it out"
unshare --net --pid --fork --kill-child=KILL chroot "$root" runuser -u user -- env -i HOME=/tmp/trial PATH=/usr/local/bin:/usr/bin:/bin DISPLAY=:0 sh -euc '
  for tool in xrandr x11vnc xdotool netstat xdg-open gtk-launch xfce4-terminal mousepad; do
    command -v "$tool" >/dev/null || { echo "$tool is missing"; exit 1; }
  done
  test -s /opt/noVNC/vnc.html && test -s /opt/noVNC/core/rfb.js && websockify --help >/dev/null
  within() { # SECONDS COMMAND...
    seconds=$1 && shift
    for try in $(seq "$seconds"); do "$@" >/dev/null 2>&1 && return; sleep 1; done
    echo "not after $seconds s: $*" && exit 1
  }
  mkdir "$HOME" && cd
  Xvfb :0 -ac -screen 0 1024x768x24 -nolisten tcp -nolisten unix >screen.log 2>&1 &
  within 30 xdpyinfo
  startxfce4 >session.log 2>&1 &
  for program in xfwm4 xfdesktop xfce4-panel; do within 60 pgrep -x "$program"; done
  scrot --pointer screen.png && test -s screen.png'
rm -rf "$root/tmp/trial" "$root/tmp/.X0-lock" "$root"/tmp/dbus-* "$root"/tmp/ssh-* "$root"/tmp/.xfsm-*
rm -rf "$root/home/user/.cache" "$root/var/log/apt" "$root/var/cache/debconf"/*-old "$root/var/cache/fontconfig"/*.TMP-*
: >"$root/etc/machine-id"

close_root
rm -rf "$work/overlay" "$work/apt.conf" "$work/ca.crt" "$work/resolv.conf"
