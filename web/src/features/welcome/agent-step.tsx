import clsx from "clsx";
import { RadioGroup } from "radix-ui";
import { useAgents } from "@/api/queries/agents";
import { KeyForm, KeyTitle } from "@/features/models/key-form";
import { needsKey } from "@/model/agent-facts";
import { Badge } from "@/ui/badge";
import { Button } from "@/ui/button";
import { Loaded } from "@/ui/states";

export function AgentStep({
  agent,
  projectId,
  busy,
  onAgent,
  onBack,
  onDone,
}: {
  agent: string;
  projectId: string | undefined;
  /** The choice is being saved. */
  busy: boolean;
  onAgent: (name: string) => void;
  onBack: () => void;
  onDone: () => void;
}) {
  const agents = useAgents();
  return (
    <Loaded query={agents}>
      {(list) => {
        const chosen = list.find((candidate) => candidate.name === agent);
        const keyMissing = chosen !== undefined && needsKey(chosen, projectId);
        return (
          <div className="flex flex-col gap-4">
            <RadioGroup.Root
              value={agent}
              onValueChange={onAgent}
              aria-label="Agent"
              className="grid gap-2 md:grid-cols-2"
            >
              {[...list]
                .sort((a, b) => Number(b.demo) - Number(a.demo))
                .map((item) => (
                  <RadioGroup.Item
                    key={item.name}
                    value={item.name}
                    className={clsx(
                      "flex flex-col gap-1 rounded-lg border bg-surface p-3 text-left hover:bg-hover",
                      item.name === agent && "border-accent ring-1 ring-accent",
                    )}
                  >
                    <span className="flex items-center gap-2 font-medium">
                      {item.title}
                      {needsKey(item, projectId) ? (
                        <Badge tone="warn">needs a key</Badge>
                      ) : (
                        <Badge tone="ok">{item.demo ? "demo, ready" : "ready"}</Badge>
                      )}
                    </span>
                    <span className="text-[13px] text-soft">{item.description}</span>
                  </RadioGroup.Item>
                ))}
            </RadioGroup.Root>
            {chosen && keyMissing && (
              <section
                key={chosen.name}
                ref={(shown) => shown?.scrollIntoView({ block: "nearest" })}
                className="flex flex-col gap-3 rounded-lg border border-warn bg-surface p-4"
              >
                <KeyTitle agent={chosen} />
                <KeyForm key={chosen.name} agent={chosen} projectId={projectId} onDone={onDone} />
              </section>
            )}
            <div className="flex gap-2">
              <Button onClick={onBack}>Back</Button>
              <Button look={keyMissing ? "plain" : "primary"} busy={busy} disabled={keyMissing} onClick={onDone}>
                Continue
              </Button>
            </div>
          </div>
        );
      }}
    </Loaded>
  );
}
