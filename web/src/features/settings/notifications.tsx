import { useState } from "react";
import { useStored } from "@/lib/stored";
import { Badge } from "@/ui/badge";
import { Button } from "@/ui/button";
import { Switch } from "@/ui/field";
import { Section } from "@/ui/page";

type Permission = NotificationPermission | "missing";

const WORDS: Record<Permission, { text: string; tone: "ok" | "bad" | "idle"; more: string }> = {
  granted: { text: "Allowed", tone: "ok", more: "Shown while Sandyard is open in a background tab." },
  denied: {
    text: "Blocked",
    tone: "bad",
    more: "This browser blocks notifications from this site. Allow them in the browser's settings.",
  },
  default: { text: "Not enabled", tone: "idle", more: "The browser asks you once for permission." },
  missing: {
    text: "Not available",
    tone: "idle",
    more: "Browsers allow notifications only for HTTPS sites and localhost.",
  },
};

const now = (): Permission => ("Notification" in window ? Notification.permission : "missing");

export function NotificationChoices() {
  const [permission, setPermission] = useState(now);
  const [needsYou, setNeedsYou] = useStored("notify.needsYou", true);
  const [finished, setFinished] = useStored("notify.finished", true);
  const [failed, setFailed] = useStored("notify.failed", true);
  const words = WORDS[permission];
  const ask = async () => {
    await Notification.requestPermission();
    setPermission(now());
  };
  return (
    <>
      <Section title="Browser notifications">
        <div className="flex flex-wrap items-center gap-3 px-4 py-3 text-[13px]" aria-live="polite">
          <Badge tone={words.tone}>{words.text}</Badge>
          <span className="min-w-0 flex-1 basis-56 text-soft">{words.more}</span>
          {permission === "default" && <Button onClick={ask}>Allow notifications</Button>}
        </div>
      </Section>
      <Section title="Notify me when" description="Applies to this browser, including messages shown in the page.">
        <div className="flex flex-col gap-3 p-4">
          <Switch checked={needsYou} onChange={setNeedsYou} label="An agent needs an answer or permission" />
          <Switch checked={finished} onChange={setFinished} label="A task is ready for review or merged" />
          <Switch checked={failed} onChange={setFailed} label="An attempt has failed" />
        </div>
      </Section>
    </>
  );
}
