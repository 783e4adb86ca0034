import { Trash2 } from "lucide-react";
import { useState } from "react";
import type { Schemas } from "@/api/client";
import { fieldError } from "@/api/errors";
import { useCredentials, useRemoveCredential, useSaveCredentials } from "@/api/queries/projects";
import type { Project } from "@/api/types";
import { findingsOf } from "@/model/connection-test";
import { Badge } from "@/ui/badge";
import { Button, IconButton } from "@/ui/button";
import { CopyButton } from "@/ui/code";
import { Confirm, Dialog } from "@/ui/dialog";
import { Field, Input, Textarea } from "@/ui/field";
import { SubmitForm, useFormState } from "@/ui/form";
import { SecretInput } from "@/ui/inputs";
import { Section } from "@/ui/page";
import { Loaded } from "@/ui/states";
import { Ago } from "@/ui/time";
import { showError, toast } from "@/ui/toast";
import { ConnectionTest, FindingList } from "./connection-test";
import { useReadOnlyReason } from "./project-form";

type Credential = Schemas["CredentialView"];
type Kind = Credential["kind"];

const KINDS: { kind: Kind; title: string; about: string }[] = [
  { kind: "token", title: "Token", about: "For HTTPS: a personal access token or a password." },
  { kind: "ssh_key", title: "SSH key", about: "For SSH: a private key without a passphrase." },
  {
    kind: "app",
    title: "GitHub App",
    about: "A GitHub App installed for the repository. It creates short-lived tokens.",
  },
  { kind: "webhook_secret", title: "Webhook secret", about: "The secret that GitHub signs webhook deliveries with." },
];

const webhookUrl = () => `${location.origin}/api/v1/webhooks/github`;

export function AccessTab({ project }: { project: Project }) {
  const frozen = Boolean(useReadOnlyReason(project));
  const query = useCredentials(project.id);
  return (
    <>
      <Section
        title="Credentials"
        description="Write-only: only the last characters of a token or the fingerprint of a key are shown."
      >
        <Loaded query={query}>
          {(stored) => (
            <ul className="divide-y">
              {KINDS.map((kind) => (
                <CredentialRow
                  key={kind.kind}
                  {...kind}
                  projectId={project.id}
                  frozen={frozen}
                  stored={stored.find((credential) => credential.kind === kind.kind)}
                />
              ))}
            </ul>
          )}
        </Loaded>
      </Section>
      <Section
        title="Webhook"
        description="Optional. With a webhook, updates of pull requests, checks and comments arrive immediately. Content type: application/json. Events: pull requests, reviews, checks, comments, issues and pushes."
      >
        <div className="flex items-center gap-2 px-4 py-3">
          <code className="min-w-0 flex-1 truncate font-mono text-xs" title={webhookUrl()}>
            {webhookUrl()}
          </code>
          <CopyButton text={webhookUrl()} label="Copy webhook URL" />
        </div>
      </Section>
      <Section title="Connection">
        <ConnectionTest projectId={project.id} />
      </Section>
    </>
  );
}

function CredentialRow({
  kind,
  title,
  about,
  stored,
  projectId,
  frozen,
}: (typeof KINDS)[number] & { stored: Credential | undefined; projectId: string; frozen: boolean }) {
  const [open, setOpen] = useState(false);
  const remove = useRemoveCredential({ onError: showError(`Could not remove the ${title}`) });
  return (
    <li className="flex flex-wrap items-center gap-x-3 gap-y-1 px-4 py-2.5">
      <div className="min-w-0 flex-1 basis-52">
        <p className="text-[13px] font-medium">{title}</p>
        <p className="text-xs text-soft">{about}</p>
      </div>
      {stored ? (
        <span className="flex min-w-0 items-center gap-2 text-xs text-soft">
          <code className="truncate font-mono">{stored.hint}</code> <Ago at={stored.updatedAt} />
        </span>
      ) : (
        <Badge>not set</Badge>
      )}
      <Button
        size="sm"
        disabled={frozen}
        onClick={() => setOpen(true)}
        aria-label={`${stored ? "Replace" : "Set"} the ${title}`}
      >
        {stored ? "Replace" : "Set"}
      </Button>
      {stored && (
        <Confirm
          trigger={
            <IconButton label={`Remove the ${title}`} size="sm" disabled={frozen}>
              <Trash2 className="size-3.5" aria-hidden />
            </IconButton>
          }
          title={`Remove the ${title}?`}
          action="Remove"
          onConfirm={() => remove.mutateAsync({ projectId, kind })}
        >
          Cloning, pushing or forge updates that rely on it stop working.
        </Confirm>
      )}
      <Dialog
        open={open}
        onOpenChange={setOpen}
        title={`${stored ? "Replace" : "Set"} the ${title}`}
        description={about}
      >
        <CredentialForm kind={kind} title={title} projectId={projectId} onDone={() => setOpen(false)} />
      </Dialog>
    </li>
  );
}

function CredentialForm({
  kind,
  title,
  projectId,
  onDone,
}: {
  kind: Kind;
  title: string;
  projectId: string;
  onDone: () => void;
}) {
  const [values, set] = useFormState({ value: "", username: "", appId: "", installationId: "" });
  const save = useSaveCredentials({
    onSuccess: () => {
      toast.success(`${title} saved`);
      onDone();
    },
  });
  const submit = (test: boolean) => save.mutate({ projectId, test, body: requestOf(kind, values) });
  const errorAt = (field: string) => fieldError(save.error, field);
  const findings = findingsOf(save.error);
  const isTested = kind !== "webhook_secret"; // the connection test does not use it
  const isMultiline = kind === "ssh_key" || kind === "app";
  return (
    <SubmitForm
      busy={save.isPending}
      error={save.error}
      errorMessage={findings ? "The connection test failed. Nothing was saved." : undefined}
      errorDetails={findings && <FindingList findings={findings} />}
      ready={Boolean(values.value)}
      submitLabel="Save"
      onSubmit={() => submit(isTested)}
      onCancel={onDone}
      actions={
        findings && (
          <Button disabled={save.isPending} onClick={() => submit(false)}>
            Save anyway
          </Button>
        )
      }
    >
      {kind === "app" && (
        <div className="grid gap-3 sm:grid-cols-2">
          <Field label="App ID" hint="The app's ID or client ID." error={errorAt("app.appId")}>
            {(control) => (
              <Input {...control} value={values.appId} onChange={(event) => set({ appId: event.target.value })} />
            )}
          </Field>
          <Field label="Installation ID" error={errorAt("app.installationId")}>
            {(control) => (
              <Input
                {...control}
                value={values.installationId}
                onChange={(event) => set({ installationId: event.target.value })}
              />
            )}
          </Field>
        </div>
      )}
      <Field
        label={kind === "app" ? "Private key (.pem)" : title}
        error={errorAt(
          { token: "token", ssh_key: "sshKey", app: "app.privateKey", webhook_secret: "webhookSecret" }[kind],
        )}
      >
        {(control) =>
          isMultiline ? (
            <Textarea
              {...control}
              rows={8}
              spellCheck={false}
              autoComplete="off"
              className="font-mono !text-xs"
              placeholder={"-----BEGIN … PRIVATE KEY-----"}
              value={values.value}
              onChange={(event) => set({ value: event.target.value })}
            />
          ) : (
            <SecretInput {...control} value={values.value} onChange={(event) => set({ value: event.target.value })} />
          )
        }
      </Field>
      {kind === "token" && (
        <Field label="Username" hint="Optional; not needed for GitHub." error={errorAt("username")}>
          {(control) => (
            <Input
              {...control}
              autoComplete="off"
              placeholder="x-access-token"
              value={values.username}
              onChange={(event) => set({ username: event.target.value })}
            />
          )}
        </Field>
      )}
    </SubmitForm>
  );
}

function requestOf(
  kind: Kind,
  values: { value: string; username: string; appId: string; installationId: string },
): Schemas["CredentialChanges"] {
  switch (kind) {
    case "token":
      return { token: values.value, ...(values.username.trim() && { username: values.username.trim() }) };
    case "ssh_key":
      return { sshKey: values.value };
    case "app":
      return {
        app: { appId: values.appId.trim(), installationId: values.installationId.trim(), privateKey: values.value },
      };
    case "webhook_secret":
      return { webhookSecret: values.value };
  }
}
