import { Link } from "@tanstack/react-router";
import { KeyRound } from "lucide-react";
import { useState } from "react";
import { useAgents } from "@/api/queries/agents";
import { useModelProviders } from "@/api/queries/models";
import type { Agent } from "@/api/types";
import { Button, type ButtonProps } from "@/ui/button";
import { Dialog } from "@/ui/dialog";
import { AskForKey, KeyForm, useKeyScope } from "./key-form";

const LOOK =
  "inline-flex h-7 items-center gap-1 rounded-md border border-line-strong bg-surface px-2 text-xs font-medium hover:bg-hover";

/** Help for a failure caused by a model provider. Renders nothing for other error codes. */
export function ProviderHelp({
  code,
  agent,
  projectId,
  onAdded,
}: {
  code: string | null | undefined;
  agent: string | null | undefined;
  projectId?: string | undefined;
  /** Called when a key was added, so that the failed action can be retried. */
  onAdded?: () => void;
}) {
  if (code === "no_model") return <AddKey agent={agent} projectId={projectId} onAdded={onAdded} />;
  if (code === "model_busy") return null; // a rate limit: no setting helps
  return code?.startsWith("model_") ? <ProviderSettingsLink projectId={projectId} /> : null;
}

/** Warn that the agent lacks its key and would fail, with a button to add the key. */
export function KeyNote({ agent, projectId }: { agent: Agent; projectId: string | undefined }) {
  return (
    <div role="note" className="flex flex-wrap items-center gap-x-3 gap-y-1.5 rounded-md bg-warn-soft px-2.5 py-2">
      <p className="min-w-0 flex-1 basis-56 text-[13px]">
        {agent.title} has no key for its model and cannot run without one.
      </p>
      <AddKey agent={agent.name} projectId={projectId} />
    </div>
  );
}

/** A button to add the agent's key; for people who may not add one, whom to ask. */
export function AddKey({
  agent: name,
  projectId,
  onAdded,
  look = "primary",
}: {
  agent: string | null | undefined;
  projectId?: string | undefined;
  onAdded?: (() => void) | undefined;
  look?: ButtonProps["look"];
}) {
  const agents = useAgents();
  const agent = agents.data?.find((candidate) => candidate.name === name);
  const scope = useKeyScope(projectId);
  const [open, setOpen] = useState(false);
  if (agents.isPending) return null;
  if (!agent) return <ProviderSettingsLink projectId={projectId} />;
  if (scope === undefined) return null;
  if (scope === "none") return <AskForKey projectId={projectId} />;
  return (
    <>
      <Button size="sm" look={look} aria-label={`Add key for ${agent.title}`} onClick={() => setOpen(true)}>
        <KeyRound className="size-3.5" aria-hidden /> Add key
      </Button>
      <Dialog
        open={open}
        onOpenChange={setOpen}
        title={`Add a key for ${agent.title}`}
        description={onAdded ? "The task is retried when the key works." : "The key is tested before it is saved."}
      >
        <KeyForm
          agent={agent}
          projectId={projectId}
          onDone={() => {
            setOpen(false);
            onAdded?.();
          }}
        />
      </Dialog>
    </>
  );
}

/** Link to the provider settings: those of the project if it has its own providers. */
export function ProviderSettingsLink({ projectId }: { projectId: string | undefined }) {
  const providers = useModelProviders(projectId, { enabled: projectId !== undefined }).data;
  const content = (
    <>
      <KeyRound className="size-3.5" aria-hidden /> Model provider settings
    </>
  );
  return projectId && providers?.some((provider) => provider.projectId === projectId) ? (
    <Link to="/projects/$projectId" params={{ projectId }} search={{ tab: "models" }} className={LOOK}>
      {content}
    </Link>
  ) : (
    <Link to="/agents" search={{ tab: "providers" }} className={LOOK}>
      {content}
    </Link>
  );
}
