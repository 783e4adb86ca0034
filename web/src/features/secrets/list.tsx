import { KeyRound, Plus, Trash2 } from "lucide-react";
import { useState } from "react";
import { fieldError } from "@/api/errors";
import { useDeleteSecret, useSaveSecret, useSecrets } from "@/api/queries/secrets";
import { Button, IconButton } from "@/ui/button";
import { Confirm, Dialog } from "@/ui/dialog";
import { Field, Input, Textarea } from "@/ui/field";
import { SubmitForm } from "@/ui/form";
import { Section } from "@/ui/page";
import { Empty, Loaded } from "@/ui/states";
import { Ago } from "@/ui/time";
import { showError, toast } from "@/ui/toast";

const NAME = /^[A-Za-z_][A-Za-z0-9_]{0,199}$/;

/** Secrets of a project, or of the caller. Values are write-only. */
export function SecretList({ projectId, frozen = false }: { projectId?: string; frozen?: boolean }) {
  const [editing, setEditing] = useState<string | null>(null);
  const query = useSecrets(projectId);
  const remove = useDeleteSecret({ onError: showError("Could not delete the secret") });
  return (
    <Section
      title={projectId ? "Project secrets" : "Your secrets"}
      description={`Environment variables of ${projectId ? "this project's" : "your"} sandboxes. Write-only: values are never shown here and are masked in the output of agents and commands.`}
      actions={
        <Button size="sm" disabled={frozen} onClick={() => setEditing("")}>
          <Plus className="size-3.5" aria-hidden /> Add a secret
        </Button>
      }
    >
      <Loaded query={query}>
        {(secrets) =>
          secrets.length ? (
            <ul className="divide-y">
              {secrets.map((secret) => (
                <li key={secret.id} className="flex flex-wrap items-center gap-x-3 gap-y-1 px-4 py-2">
                  <code className="min-w-0 flex-1 basis-40 truncate font-mono text-[13px]">{secret.name}</code>
                  <span className="text-xs text-soft">
                    updated <Ago at={secret.updatedAt} />
                  </span>
                  <Button
                    size="sm"
                    disabled={frozen}
                    onClick={() => setEditing(secret.name)}
                    aria-label={`Replace ${secret.name}`}
                  >
                    Replace
                  </Button>
                  <Confirm
                    trigger={
                      <IconButton label={`Delete ${secret.name}`} size="sm" disabled={frozen}>
                        <Trash2 className="size-3.5" aria-hidden />
                      </IconButton>
                    }
                    title={`Delete ${secret.name}?`}
                    action="Delete"
                    onConfirm={() => remove.mutateAsync({ name: secret.name, projectId })}
                  >
                    New sandboxes no longer get it.
                  </Confirm>
                </li>
              ))}
            </ul>
          ) : (
            <Empty title="No secrets" icon={<KeyRound className="size-5" aria-hidden />}>
              For example, a token for a package registry.
            </Empty>
          )
        }
      </Loaded>
      <Dialog
        open={editing !== null}
        onOpenChange={(open) => !open && setEditing(null)}
        title={editing ? `Replace ${editing}` : "Add a secret"}
        description="Write-only: stored encrypted and never shown again."
      >
        {editing !== null && <SecretForm name={editing} projectId={projectId} onDone={() => setEditing(null)} />}
      </Dialog>
    </Section>
  );
}

function SecretForm({
  name: known,
  projectId,
  onDone,
}: {
  name: string;
  projectId: string | undefined;
  onDone: () => void;
}) {
  const [name, setName] = useState(known);
  const [value, setValue] = useState("");
  const save = useSaveSecret({
    onSuccess: () => {
      toast.success(`${name} saved`);
      onDone();
    },
  });
  const nameError = name && !NAME.test(name) ? "Use letters, digits and _, and do not start with a digit." : undefined;
  return (
    <SubmitForm
      busy={save.isPending}
      error={save.error}
      ready={Boolean(name && !nameError && value)}
      submitLabel="Save"
      onSubmit={() => save.mutate({ name, projectId, value })}
      onCancel={onDone}
    >
      <Field
        label="Name"
        hint="The name of the environment variable: letters, digits and _."
        error={nameError ?? fieldError(save.error, "name")}
      >
        {(control) => (
          <Input
            {...control}
            className="font-mono"
            spellCheck={false}
            autoComplete="off"
            placeholder="NPM_TOKEN"
            disabled={known !== ""}
            value={name}
            onChange={(event) => setName(event.target.value.trim())}
          />
        )}
      </Field>
      <Field label="Value" error={fieldError(save.error, "value")}>
        {(control) => (
          <Textarea
            {...control}
            className="font-mono !text-xs [-webkit-text-security:disc]"
            spellCheck={false}
            autoComplete="off"
            value={value}
            onChange={(event) => setValue(event.target.value)}
          />
        )}
      </Field>
    </SubmitForm>
  );
}
