import { useQuery } from "@tanstack/react-query";
import { type ReactNode, useEffect, useState } from "react";
import { sandbox as sandboxQuery } from "@/api/queries";
import { Button } from "@/ui/button";
import { Empty, Loaded, Loading } from "@/ui/states";

/** Content that needs a running sandbox. Using a paused sandbox resumes it, so the user is asked first. */
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
    if (status === "running") setWanted(false); // ask again after the next pause
  }, [status]);
  return (
    <Loaded query={sandbox}>
      {(box) => {
        if (box.status === "destroyed" || box.status === "error") {
          return (
            <Empty title={box.status === "error" ? "Sandbox failed" : "Sandbox destroyed"}>
              {box.error ?? "Its files are gone. Its commits and checkpoints are kept with the session."}
            </Empty>
          );
        }
        if (box.status === "provisioning") return <Loading label="Starting the sandbox" />;
        if (box.status === "running" || wanted) return children;
        return (
          <Empty
            title="Sandbox paused"
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
