import { CircleCheck, CircleX, Plug, Plus, Trash2 } from "lucide-react";
import { useState } from "react";
import type { Schemas } from "@/api/client";
import { useDeleteMcpServer, useMcpServers, useTestMcpServer } from "@/api/queries/mcp-servers";
import type { McpServer } from "@/api/types";
import { Badge } from "@/ui/badge";
import { Button, IconButton } from "@/ui/button";
import { Confirm, Dialog } from "@/ui/dialog";
import { Section } from "@/ui/page";
import { Empty, Loaded } from "@/ui/states";
import { showError } from "@/ui/toast";
import { ServerForm } from "./server-form";

/** MCP servers: additional tools for the project's agents. */
export function McpServers({ projectId, frozen }: { projectId: string; frozen: boolean }) {
  const [editing, setEditing] = useState<McpServer | "new" | null>(null);
  const query = useMcpServers(projectId);
  return (
    <Section
      title="MCP servers"
      description="Tools for this project's agents: a command that runs in the sandbox, or a URL. Headers of a URL are stored by the platform and not sent to the sandbox."
      actions={
        <Button size="sm" disabled={frozen} onClick={() => setEditing("new")}>
          <Plus className="size-3.5" aria-hidden /> Add a server
        </Button>
      }
    >
      <Loaded query={query}>
        {(servers) =>
          servers.length ? (
            <ul className="divide-y" aria-label="MCP servers">
              {servers.map((server) => (
                <ServerRow key={server.id} server={server} frozen={frozen} onEdit={() => setEditing(server)} />
              ))}
            </ul>
          ) : (
            <Empty title="No MCP servers" icon={<Plug className="size-5" aria-hidden />}>
              Agents have their own tools. An MCP server gives them more, such as an issue tracker or a database.
            </Empty>
          )
        }
      </Loaded>
      <Dialog
        open={editing !== null}
        onOpenChange={(open) => !open && setEditing(null)}
        title={editing && editing !== "new" ? editing.name : "Add an MCP server"}
        description="Takes effect on the agent's next turn; changed headers and URLs take effect immediately."
      >
        {editing && (
          <ServerForm
            server={editing === "new" ? undefined : editing}
            projectId={projectId}
            onDone={() => setEditing(null)}
          />
        )}
      </Dialog>
    </Section>
  );
}

function ServerRow({ server, frozen, onEdit }: { server: McpServer; frozen: boolean; onEdit: () => void }) {
  const test = useTestMcpServer({ onError: showError("Could not test the server") });
  const remove = useDeleteMcpServer({ onError: showError("Could not remove the server") });
  const address = server.url ?? [server.command, ...server.args].join(" ");
  return (
    <li className="px-4 py-2.5">
      <div className="flex flex-wrap items-center gap-x-3 gap-y-1.5">
        <div className="min-w-0 flex-1 basis-56">
          <p className="flex flex-wrap items-center gap-2 text-[13px] font-medium">
            {server.name} <Badge>{server.type === "http" ? "URL" : "Command"}</Badge>
          </p>
          <p className="truncate font-mono text-xs text-soft" title={address}>
            {address}
          </p>
          <p className="truncate text-xs text-soft">{describe(server)}</p>
        </div>
        <div className="flex gap-1.5">
          {server.type === "http" && (
            <Button
              size="sm"
              busy={test.isPending}
              disabled={frozen}
              onClick={() => test.mutate(server)}
              aria-label={`Test ${server.name}`}
            >
              Test
            </Button>
          )}
          <Button size="sm" disabled={frozen} onClick={onEdit} aria-label={`Edit ${server.name}`}>
            Edit
          </Button>
          <Confirm
            trigger={
              <IconButton label={`Remove ${server.name}`} size="sm" disabled={frozen}>
                <Trash2 className="size-3.5" aria-hidden />
              </IconButton>
            }
            title={`Remove ${server.name}?`}
            action="Remove"
            onConfirm={() => remove.mutateAsync(server)}
          >
            Agents of this project can no longer use its tools.
          </Confirm>
        </div>
      </div>
      {/* a result is valid only for the tested version */}
      <div aria-live="polite">
        {test.data && test.variables.updatedAt === server.updatedAt && <TestResult result={test.data} />}
      </div>
    </li>
  );
}

function TestResult({ result }: { result: Schemas["McpServerTest"] }) {
  return (
    <div className="mt-1.5 flex items-start gap-1.5 text-[13px]">
      {result.ok ? (
        <CircleCheck className="mt-0.5 size-4 shrink-0 text-ok" role="img" aria-label="passed" />
      ) : (
        <CircleX className="mt-0.5 size-4 shrink-0 text-bad" role="img" aria-label="failed" />
      )}
      <div className="min-w-0 break-words">
        {result.detail} <span className="text-faint tabular-nums">{result.durationMs} ms</span>
        {result.tools.length > 0 && <p className="font-mono text-xs text-soft">{result.tools.join(", ")}</p>}
      </div>
    </div>
  );
}

function describe(server: McpServer): string {
  if (server.type === "http")
    return server.headers.length
      ? server.headers.map((header) => `${header.name} ${header.hint}`).join(" · ")
      : "no headers";
  const names = Object.keys(server.env);
  return names.length ? `with ${names.join(", ")}` : "no variables";
}
