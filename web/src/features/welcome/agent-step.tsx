import { useQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import clsx from "clsx";
import { RadioGroup } from "radix-ui";
import { agents } from "@/api/queries";
import { Badge } from "@/ui/badge";
import { Button } from "@/ui/button";
import { Loaded } from "@/ui/states";

export function AgentStep({
  agent,
  onAgent,
  onBack,
  onDone,
}: {
  agent: string;
  onAgent: (name: string) => void;
  onBack: () => void;
  onDone: () => void;
}) {
  const known = useQuery(agents);
  return (
    <Loaded query={known}>
      {(list) => (
        <div className="flex flex-col gap-4">
          <RadioGroup.Root
            value={agent}
            onValueChange={onAgent}
            aria-label="Agent"
            className="grid gap-2 md:grid-cols-2"
          >
            {[...list]
              .sort((a, b) => Number(b.demo) - Number(a.demo))
              .map((one) => (
                <RadioGroup.Item
                  key={one.name}
                  value={one.name}
                  className={clsx(
                    "flex flex-col gap-1 rounded-lg border bg-surface p-3 text-left hover:bg-hover",
                    one.name === agent && "border-accent ring-1 ring-accent",
                  )}
                >
                  <span className="flex items-center gap-2 font-medium">
                    {one.title}
                    {one.demo ? <Badge tone="ok">demo, ready</Badge> : <Badge>needs a model</Badge>}
                  </span>
                  <span className="text-[13px] text-soft">{one.description}</span>
                </RadioGroup.Item>
              ))}
          </RadioGroup.Root>
          <p className="text-xs text-soft">
            The demo agent has no model and no network: it follows simple written instructions, to show the whole way.
            The others need a model's key, under{" "}
            <Link to="/agents" search={{ tab: "providers" }} className="text-accent underline">
              Agents → Model providers
            </Link>
            .
          </p>
          <div className="flex gap-2">
            <Button onClick={onBack}>Back</Button>
            <Button look="primary" onClick={onDone}>
              Continue
            </Button>
          </div>
        </div>
      )}
    </Loaded>
  );
}
