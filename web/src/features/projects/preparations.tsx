import { Link } from "@tanstack/react-router";
import { ChevronRight, Trash2 } from "lucide-react";
import { useState } from "react";
import type { Schemas } from "@/api/client";
import { useCommandOutput } from "@/api/queries/commands";
import { useDeletePreparation, usePreparations, useStartPreparation } from "@/api/queries/projects";
import type { Project } from "@/api/types";
import { formatDuration } from "@/lib/format";
import type { StatusLabel } from "@/model/status-labels";
import { Button, IconButton } from "@/ui/button";
import { Confirm, Dialog } from "@/ui/dialog";
import { Section } from "@/ui/page";
import { Empty, Loaded } from "@/ui/states";
import { Status } from "@/ui/status";
import { Ago } from "@/ui/time";
import { showError } from "@/ui/toast";
import { useReadOnlyReason } from "./project-form";

type Preparation = Schemas["PreparationView"];

const STATUS_LABELS: Record<Preparation["status"], StatusLabel> = {
  preparing: { text: "Preparing", tone: "info", busy: true },
  ready: { text: "Ready", tone: "ok" },
  failed: { text: "Failed", tone: "bad" },
};

/** The project's latest preparations, which its sessions start from. */
export function Preparations({ project }: { project: Project }) {
  const query = usePreparations(project.id);
  const prepare = useStartPreparation({ onError: showError("Could not start the preparation") });
  return (
    <Section
      title="Preparations"
      description="Snapshots of a prepared checkout, created automatically when a task needs one."
      actions={
        <Button
          size="sm"
          busy={prepare.isPending}
          onClick={() => prepare.mutate(project.id)}
          disabled={!project.repository}
        >
          Prepare now
        </Button>
      }
    >
      <Loaded query={query}>
        {(preparations) =>
          preparations.length ? (
            <ul className="divide-y">
              {preparations.map((preparation) => (
                <PreparationRow key={preparation.id} preparation={preparation} project={project} />
              ))}
            </ul>
          ) : (
            <Empty title="No preparations yet">
              The first task prepares the repository. You can also prepare it now.
            </Empty>
          )
        }
      </Loaded>
    </Section>
  );
}

function PreparationRow({ preparation, project }: { preparation: Preparation; project: Project }) {
  const [open, setOpen] = useState(preparation.status === "failed");
  const frozen = Boolean(useReadOnlyReason(project));
  const remove = useDeletePreparation({ onError: showError("Could not delete the preparation") });
  return (
    <li className="px-4 py-2.5">
      <div className="flex flex-wrap items-center gap-x-3 gap-y-1">
        <button
          type="button"
          aria-expanded={open}
          onClick={() => setOpen(!open)}
          className="flex min-w-0 flex-1 basis-52 items-center gap-2 text-left text-[13px]"
        >
          <ChevronRight
            className={`size-3.5 shrink-0 text-faint transition-transform ${open ? "rotate-90" : ""}`}
            aria-hidden
          />
          <span className="truncate">
            {preparation.baseBranch}{" "}
            <span className="font-mono text-xs text-soft">{preparation.baseCommit.slice(0, 8)}</span>
            <span className="text-soft"> · {preparation.agent ?? "no agent"}</span>
          </span>
        </button>
        <Status status={STATUS_LABELS[preparation.status]} />
        <span className="text-xs text-soft tabular-nums">
          {preparation.status === "preparing"
            ? preparation.step
            : preparation.seconds !== null && `${formatDuration(preparation.seconds)} · `}
          {preparation.status !== "preparing" && <Ago at={preparation.createdAt} />}
        </span>
        <Confirm
          trigger={
            <IconButton
              label="Delete this preparation"
              size="sm"
              disabled={frozen || preparation.status === "preparing"}
            >
              <Trash2 className="size-3.5" aria-hidden />
            </IconButton>
          }
          title="Delete this preparation?"
          action="Delete"
          onConfirm={() => remove.mutateAsync({ id: preparation.id, projectId: project.id })}
        >
          Its snapshot is deleted too. Sessions started from it are not affected.
        </Confirm>
      </div>
      {open && <PreparationDetails preparation={preparation} />}
    </li>
  );
}

function PreparationDetails({ preparation }: { preparation: Preparation }) {
  return (
    <div className="mt-2 flex flex-col gap-2 pl-5 text-[13px]">
      {preparation.error && <p className="break-words whitespace-pre-wrap text-bad">{preparation.error}</p>}
      {preparation.warnings.map((warning) => (
        <p key={warning} className="break-words text-warn">
          {warning}
        </p>
      ))}
      {preparation.commands.length ? (
        <ul className="divide-y rounded-md border">
          {preparation.commands.map((command) => (
            <li key={command.commandId} className="flex flex-wrap items-center gap-2 px-2 py-1.5">
              <code className="min-w-0 flex-1 basis-40 truncate font-mono text-xs" title={command.command}>
                {command.command}
              </code>
              <span className="text-xs text-soft tabular-nums">
                {command.source} · {formatDuration(command.seconds)} ·{" "}
                <span className={command.exitCode ? "text-bad" : ""}>
                  {command.exitCode === null ? "not finished" : `exit ${command.exitCode}`}
                </span>
              </span>
              <CommandOutput commandId={command.commandId} title={command.command} />
            </li>
          ))}
        </ul>
      ) : (
        <p className="text-xs text-soft">No commands were needed.</p>
      )}
      <p className="text-xs text-soft">
        Template {preparation.template}
        {preparation.agentsMd && " · has an AGENTS.md"}
        {preparation.shallow && " · shallow"}
        {preparation.sandboxId && (
          <>
            {" · "}
            <Link
              to="/sandboxes/$sandboxId"
              params={{ sandboxId: preparation.sandboxId }}
              className="text-accent underline"
            >
              sandbox
            </Link>
          </>
        )}
      </p>
    </div>
  );
}

/** The first 256 KiB of each of a command's output streams; for most commands that is all of it. */
function CommandOutput({ commandId, title }: { commandId: string; title: string }) {
  const [open, setOpen] = useState(false);
  const query = useCommandOutput(commandId, { enabled: open });
  return (
    <>
      <Button size="sm" look="ghost" onClick={() => setOpen(true)}>
        Output
      </Button>
      <Dialog
        open={open}
        onOpenChange={setOpen}
        title="Output"
        description={<code className="font-mono break-all">{title}</code>}
        wide
      >
        <Loaded query={query}>
          {(pages) => (
            <>
              {pages.map((page) =>
                page.text ? (
                  <section key={page.stream} className="mb-3">
                    <h3 className="mb-1 text-xs font-medium text-soft">{page.stream}</h3>
                    <pre
                      className="max-h-[50vh] overflow-auto rounded-md border bg-sunken p-2 font-mono text-xs whitespace-pre-wrap"
                      // biome-ignore lint/a11y/noNoninteractiveTabindex: it scrolls, so it must be reachable by keyboard
                      tabIndex={0}
                    >
                      {page.text}
                    </pre>
                    {page.end < page.total && <p className="text-xs text-soft">The rest of the output is not shown.</p>}
                  </section>
                ) : null,
              )}
              {pages.every((page) => !page.total) && <p className="text-[13px] text-soft">No output.</p>}
            </>
          )}
        </Loaded>
      </Dialog>
    </>
  );
}
