import { useCurrentUser } from "@/api/queries/account";
import { useProject, useUpdateProject } from "@/api/queries/projects";
import { useDeniedConnections } from "@/api/queries/sandboxes";
import type { Project } from "@/api/types";
import { Button } from "@/ui/button";
import { Loaded } from "@/ui/states";
import { Ago } from "@/ui/time";
import { showError, toast } from "@/ui/toast";

const POLL_MS = 10_000;

/** Connections blocked by the network settings. */
export function DeniedConnections({
  sandboxId,
  projectId,
  running,
}: {
  sandboxId: string;
  projectId: string | undefined;
  running: boolean;
}) {
  const query = useDeniedConnections(sandboxId, { refetchInterval: running ? POLL_MS : false });
  return (
    <Loaded query={query}>
      {({ available, items }) =>
        items.length === 0 ? (
          <p className="text-[13px] text-soft">
            {available ? "No blocked connections." : "This engine does not report blocked connections."}
          </p>
        ) : (
          <ul className="divide-y rounded-md border">
            {items.map((attempt) => (
              <li
                key={`${attempt.host}:${attempt.port}/${attempt.protocol}`}
                className="flex flex-wrap items-center gap-2 px-2 py-1.5"
              >
                <span className="font-mono text-[13px] break-all">
                  {attempt.host}
                  {attempt.port !== null && `:${attempt.port}`}
                </span>
                <span className="text-xs text-soft">{attempt.protocol}</span>
                <span className="mr-auto text-xs text-soft">
                  <Ago at={attempt.at} />
                </span>
                {projectId && <AllowHost host={attempt.host} projectId={projectId} />}
              </li>
            ))}
          </ul>
        )
      }
    </Loaded>
  );
}

/** Allow the host. Shown to people who may change the project, if only listed hosts are allowed. */
function AllowHost({ host, projectId }: { host: string; projectId: string }) {
  const user = useCurrentUser();
  const project = useProject(projectId).data;
  const allow = useUpdateProject({
    onSuccess: () => toast.success(`${host} is now allowed`),
    onError: showError("Could not allow the host"),
  });
  const withHost = ({ settings }: Project) => ({
    settings: { ...settings, network: { ...settings.network, allow: [...(settings.network?.allow ?? []), host] } },
  });
  const network = project?.settings.network;
  const mayChange = user && project && (user.role === "admin" || user.id === project.ownerId);
  if (!mayChange || network?.mode !== "listed") return null;
  if (network.allow?.includes(host)) return <span className="text-xs text-soft">Allowed</span>;
  return (
    <Button size="sm" busy={allow.isPending} onClick={() => allow.mutate({ id: projectId, changes: withHost })}>
      Allow
    </Button>
  );
}
