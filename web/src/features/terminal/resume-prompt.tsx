import { type ReactNode, useEffect, useState } from "react";
import { useSandbox } from "@/api/queries/sandboxes";
import { Button } from "@/ui/button";
import { Empty, Loaded, Loading } from "@/ui/states";

/** Content that needs a running sandbox. Using a paused sandbox resumes it, so the user is asked first. */
export function ResumePrompt({
  sandboxId,
  action,
  explanation,
  children,
}: {
  sandboxId: string;
  action: string;
  explanation: string;
  children: ReactNode;
}) {
  const sandbox = useSandbox(sandboxId);
  const [confirmed, setConfirmed] = useState(false);
  const status = sandbox.data?.status;
  useEffect(() => {
    if (status === "running") setConfirmed(false); // ask again after the next pause
  }, [status]);
  return (
    <Loaded query={sandbox}>
      {(box) => {
        if (box.status === "destroyed" || box.status === "error") {
          return (
            <Empty title={box.status === "error" ? "Sandbox failed" : "Sandbox deleted"}>
              {box.error ?? "Its files are gone. Its commits and checkpoints are kept with the session."}
            </Empty>
          );
        }
        if (box.status === "provisioning") return <Loading label="Starting the sandbox" />;
        if (box.status === "running" || confirmed) return children;
        return (
          <Empty
            title="Sandbox paused"
            action={
              <Button look="primary" onClick={() => setConfirmed(true)}>
                {action}
              </Button>
            }
          >
            {explanation}
          </Empty>
        );
      }}
    </Loaded>
  );
}
