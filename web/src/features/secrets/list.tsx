import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { KeyRound, Plus, Trash2 } from "lucide-react";
import { type FormEvent, useState } from "react";
import { all, api, got } from "@/api/client";
import { fault, overall } from "@/lib/problems";
import { Section } from "@/shell/page";
import { Button, IconButton } from "@/ui/button";
import { Confirm, Dialog } from "@/ui/dialog";
import { Field, Input, Textarea } from "@/ui/field";
import { Empty, Loaded } from "@/ui/states";
import { Ago } from "@/ui/time";
import { failed, toast } from "@/ui/toast";

const NAME = /^[A-Za-z_][A-Za-z0-9_]{0,199}$/;

/** Secrets of a project, or of the caller. Values are write-only. */
export function SecretList({ projectId, frozen = false }: { projectId?: string; frozen?: boolean }) {
  const client = useQueryClient();
  const [writing, setWriting] = useState<string | null>(null);
  const query = useQuery({
    queryKey: ["secrets", projectId ?? "own"],
    queryFn: () =>
      all((cursor) => got(api.GET("/api/v1/secrets", { params: { query: { projectId, cursor, limit: 200 } } }))),
  });
  const remove = useMutation({
    mutationFn: (name: string) =>
      got(api.DELETE("/api/v1/secrets/{name}", { params: { path: { name }, query: { projectId } } })),
    onSuccess: () => client.invalidateQueries({ queryKey: ["secrets"] }),
    onError: failed("Could not delete the secret"),
  });
  return (
    <Section
      title={projectId ? "Project secrets" : "Your secrets"}
      description={`Environment variables of ${projectId ? "this project's" : "your"} sandboxes. Write-only: values are never shown here and are masked in the output of agents and commands.`}
      actions={
        <Button size="sm" disabled={frozen} onClick={() => setWriting("")}>
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
                    onClick={() => setWriting(secret.name)}
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
                    onConfirm={() => remove.mutateAsync(secret.name)}
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
        open={writing !== null}
        onOpenChange={(open) => !open && setWriting(null)}
        title={writing ? `Replace ${writing}` : "Add a secret"}
        description="Write-only: stored encrypted and never shown again."
      >
        {writing !== null && <Write name={writing} projectId={projectId} onDone={() => setWriting(null)} />}
      </Dialog>
    </Section>
  );
}

function Write({
  name: known,
  projectId,
  onDone,
}: {
  name: string;
  projectId: string | undefined;
  onDone: () => void;
}) {
  const client = useQueryClient();
  const [name, setName] = useState(known);
  const [value, setValue] = useState("");
  const save = useMutation({
    mutationFn: () =>
      got(
        api.PUT("/api/v1/secrets/{name}", {
          params: { path: { name } },
          body: { value, ...(projectId && { projectId }) },
        }),
      ),
    onSuccess: () => {
      void client.invalidateQueries({ queryKey: ["secrets"] });
      toast.success(`${name} saved`);
      onDone();
    },
  });
  const wrongName = name && !NAME.test(name) ? "Use letters, digits and _, and do not start with a digit." : undefined;
  const submit = (event: FormEvent) => {
    event.preventDefault();
    if (name && !wrongName && value && !save.isPending) save.mutate();
  };
  return (
    <form onSubmit={submit} className="flex flex-col gap-3" noValidate>
      <Field
        label="Name"
        hint="The name of the environment variable: letters, digits and _."
        error={wrongName ?? fault(save.error, "name")}
      >
        {(wear) => (
          <Input
            {...wear}
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
      <Field label="Value" error={fault(save.error, "value")}>
        {(wear) => (
          <Textarea
            {...wear}
            className="font-mono !text-xs [-webkit-text-security:disc]"
            spellCheck={false}
            autoComplete="off"
            value={value}
            onChange={(event) => setValue(event.target.value)}
          />
        )}
      </Field>
      {save.error && (
        <p role="alert" className="text-[13px] text-bad">
          {overall(save.error)}
        </p>
      )}
      <div className="flex justify-end gap-2">
        <Button onClick={onDone}>Cancel</Button>
        <Button type="submit" look="primary" busy={save.isPending} disabled={!name || Boolean(wrongName) || !value}>
          Save
        </Button>
      </div>
    </form>
  );
}
