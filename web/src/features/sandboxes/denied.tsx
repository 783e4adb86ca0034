import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { api, got } from "@/api/client";
import { me, project as oneProject } from "@/api/queries";
import { Button } from "@/ui/button";
import { Loaded } from "@/ui/states";
import { Ago } from "@/ui/time";
import { failed, toast } from "@/ui/toast";

const EVERY_MS = 10_000;

/** Connections blocked by the network settings. */
export function Denied({
  sandboxId,
  projectId,
  awake,
}: {
  sandboxId: string;
  projectId: string | undefined;
  awake: boolean;
}) {
  const query = useQuery({
    queryKey: ["denied", sandboxId],
    queryFn: () =>
      got(api.GET("/api/v1/sandboxes/{sandbox_id}/denied", { params: { path: { sandbox_id: sandboxId } } })),
    refetchInterval: awake ? EVERY_MS : false,
  });
  return (
    <Loaded query={query}>
      {({ available, items }) =>
        items.length === 0 ? (
          <p className="text-[13px] text-soft">
            {available ? "No blocked connections." : "This engine does not report blocked connections."}
          </p>
        ) : (
          <ul className="divide-y rounded-md border">
            {items.map((one) => (
              <li
                key={`${one.host}:${one.port}/${one.protocol}`}
                className="flex flex-wrap items-center gap-2 px-2 py-1.5"
              >
                <span className="font-mono text-[13px] break-all">
                  {one.host}
                  {one.port !== null && `:${one.port}`}
                </span>
                <span className="text-xs text-soft">{one.protocol}</span>
                <span className="mr-auto text-xs text-soft">
                  <Ago at={one.at} />
                </span>
                {projectId && <Allow host={one.host} projectId={projectId} />}
              </li>
            ))}
          </ul>
        )
      }
    </Loaded>
  );
}

/** Allow the host. Shown to people who may change the project, if only listed hosts are allowed. */
function Allow({ host, projectId }: { host: string; projectId: string }) {
  const client = useQueryClient();
  const caller = useQuery(me).data?.user;
  const project = useQuery(oneProject(projectId)).data;
  const allow = useMutation({
    mutationFn: async () => {
      const path = { params: { path: { project_id: projectId } } };
      const { settings } = await got(api.GET("/api/v1/projects/{project_id}", path));
      const network = { ...settings.network, allow: [...(settings.network?.allow ?? []), host] };
      return got(api.PATCH("/api/v1/projects/{project_id}", { ...path, body: { settings: { ...settings, network } } }));
    },
    onSuccess: (saved) => {
      client.setQueryData(oneProject(projectId).queryKey, saved);
      toast.success(`${host} is now allowed`);
    },
    onError: failed("Could not allow the host"),
  });
  const network = project?.settings.network;
  const mayChange = caller && project && (caller.role === "admin" || caller.id === project.ownerId);
  if (!mayChange || network?.mode !== "listed") return null;
  if (network.allow?.includes(host)) return <span className="text-xs text-soft">Allowed</span>;
  return (
    <Button size="sm" busy={allow.isPending} onClick={() => allow.mutate()}>
      Allow
    </Button>
  );
}
