import { Link } from "@tanstack/react-router";
import { Brain, CircleCheck, CircleX, Plus, Trash2 } from "lucide-react";
import { useState } from "react";
import { useIsAdmin } from "@/api/queries/account";
import { useDeleteModelProvider, useModelProviders, useTestModelProvider } from "@/api/queries/models";
import type { ModelProvider } from "@/api/types";
import { Badge } from "@/ui/badge";
import { Button, IconButton } from "@/ui/button";
import { Confirm, Dialog } from "@/ui/dialog";
import { Section } from "@/ui/page";
import { Empty, Loaded } from "@/ui/states";
import { showError } from "@/ui/toast";
import { KIND_NAMES, NO_KEY, ProviderForm } from "./provider-form";

/** Shared providers, which administrators can change. With a project, also its own providers, which its owner can change. */
export function Providers({ projectId, frozen }: { projectId?: string; frozen: boolean }) {
  const query = useModelProviders(projectId);
  const [editing, setEditing] = useState<ModelProvider | "new" | null>(null);
  const description = projectId
    ? "Model providers for this project's agents. The project's own providers take precedence over shared ones."
    : "Model providers for agents. Keys stay with the platform: agents only get an address inside their sandbox.";
  return (
    <Section
      title="Model providers"
      description={description}
      actions={
        <Button size="sm" disabled={frozen} onClick={() => setEditing("new")}>
          <Plus className="size-3.5" aria-hidden /> Add a provider
        </Button>
      }
    >
      <Loaded query={query}>
        {(found) => {
          const shown = projectId ? found : found.filter((provider) => provider.projectId === null);
          return shown.length ? (
            <ul className="divide-y">
              {shown.map((provider) => (
                <ProviderRow
                  key={provider.id}
                  provider={provider}
                  shared={projectId !== undefined && provider.projectId === null}
                  frozen={frozen}
                  onEdit={() => setEditing(provider)}
                />
              ))}
            </ul>
          ) : (
            <Empty title="No model providers" icon={<Brain className="size-5" aria-hidden />}>
              Every agent except the demo agent needs a model.
            </Empty>
          );
        }}
      </Loaded>
      <Dialog
        open={editing !== null}
        onOpenChange={(open) => !open && setEditing(null)}
        title={editing && editing !== "new" ? editing.name : "Add a model provider"}
        description={projectId ? "For this project only." : "Shared by all projects."}
      >
        {editing && (
          <ProviderForm
            provider={editing === "new" ? undefined : editing}
            projectId={projectId}
            onDone={() => setEditing(null)}
          />
        )}
      </Dialog>
    </Section>
  );
}

function ProviderRow({
  provider,
  shared,
  frozen,
  onEdit,
}: {
  provider: ModelProvider;
  shared: boolean;
  frozen: boolean;
  onEdit: () => void;
}) {
  const test = useTestModelProvider({ onError: showError("Could not test the provider") });
  const remove = useDeleteModelProvider({ onError: showError("Could not delete the provider") });
  const isAdmin = useIsAdmin();
  const readOnly = frozen || shared;
  return (
    <li className="px-4 py-2.5">
      <div className="flex flex-wrap items-center gap-x-3 gap-y-1.5">
        <div className="min-w-0 flex-1 basis-56">
          <p className="flex flex-wrap items-center gap-2 text-[13px] font-medium">
            {provider.name} <Badge>{KIND_NAMES[provider.kind]}</Badge>
            {shared && <Badge tone="info">shared</Badge>}
          </p>
          <p className="truncate font-mono text-xs text-soft" title={provider.baseUrl}>
            {provider.baseUrl}
          </p>
          <p className="flex flex-wrap gap-x-1 text-xs text-soft">
            <span className="max-w-full truncate">
              {provider.models.length ? provider.models.join(", ") : "any model"}
            </span>
            <span>
              · <KeyHint hint={provider.hint} />
            </span>
            {!Object.keys(provider.prices).length && <span>· no prices</span>}
          </p>
        </div>
        {shared && isAdmin && (
          <Link
            to="/agents"
            search={{ tab: "providers" }}
            aria-label={`Edit shared provider ${provider.name}`}
            className="text-xs text-accent underline underline-offset-2"
          >
            Edit shared provider
          </Link>
        )}
        {!shared && (
          <div className="flex gap-1.5">
            <Button
              size="sm"
              busy={test.isPending}
              disabled={frozen}
              onClick={() => test.mutate(provider.id)}
              aria-label={`Test ${provider.name}`}
            >
              Test
            </Button>
            <Button size="sm" disabled={readOnly} onClick={onEdit} aria-label={`Edit ${provider.name}`}>
              Edit
            </Button>
            <Confirm
              trigger={
                <IconButton label={`Delete ${provider.name}`} size="sm" disabled={readOnly}>
                  <Trash2 className="size-3.5" aria-hidden />
                </IconButton>
              }
              title={`Delete ${provider.name}?`}
              action="Delete"
              onConfirm={() => remove.mutateAsync(provider.id)}
            >
              Agents that use it lose their model. Its usage history is kept.
            </Confirm>
          </div>
        )}
      </div>
      <div aria-live="polite">
        {test.data && (
          <p className="mt-1.5 flex items-start gap-1.5 text-[13px]">
            {test.data.ok ? (
              <CircleCheck className="mt-0.5 size-4 shrink-0 text-ok" role="img" aria-label="passed" />
            ) : (
              <CircleX className="mt-0.5 size-4 shrink-0 text-bad" role="img" aria-label="failed" />
            )}
            <span className="min-w-0 break-words">
              {test.data.detail} <span className="text-faint tabular-nums">{test.data.durationMs} ms</span>
            </span>
          </p>
        )}
      </div>
    </li>
  );
}

function KeyHint({ hint }: { hint: string }) {
  return hint === NO_KEY ? hint : <span className="whitespace-nowrap">{`key ${hint}`}</span>;
}
