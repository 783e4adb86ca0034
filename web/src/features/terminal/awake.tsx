import { useQuery } from "@tanstack/react-query";
import { type ReactNode, useEffect, useState } from "react";
import { sandbox as sandboxQuery } from "@/api/queries";
import { Button } from "@/ui/button";
import { Empty, Loaded, Loading } from "@/ui/states";

/** What needs a sandbox that runs. A paused one is woken by being used: that is said before, and done when it is wanted. */
export function Awake({
  sandboxId,
  action,
  why,
  children,
}: {
  sandboxId: string;
  action: string;
  why: string;
  children: ReactNode;
}) {
  const sandbox = useQuery(sandboxQuery(sandboxId));
  const [wanted, setWanted] = useState(false);
  const status = sandbox.data?.status;
  useEffect(() => {
    if (status === "running") setWanted(false); // when it is paused again, it is asked again
  }, [status]);
  return (
    <Loaded query={sandbox}>
      {(box) => {
        if (box.status === "destroyed" || box.status === "error") {
          return (
            <Empty title={box.status === "error" ? "The sandbox has failed" : "The sandbox was destroyed"}>
              {box.error ?? "What was in it is gone; its commits and checkpoints are kept with its session."}
            </Empty>
          );
        }
        if (box.status === "provisioning") return <Loading label="The sandbox is starting" />;
        if (box.status === "running" || wanted) return children;
        return (
          <Empty
            title="The sandbox is paused"
            action={
              <Button look="primary" onClick={() => setWanted(true)}>
                {action}
              </Button>
            }
          >
            {why}
          </Empty>
        );
      }}
    </Loaded>
  );
}
