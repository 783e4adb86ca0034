import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { Trash2 } from "lucide-react";
import { type ReactNode, useState } from "react";
import { api, got, type Schemas } from "@/api/client";
import type { Project } from "@/api/types";
import { fault, overall } from "@/lib/problems";
import { Section } from "@/shell/page";
import { Badge } from "@/ui/badge";
import { Button, IconButton } from "@/ui/button";
import { CopyButton } from "@/ui/code";
import { Confirm, Dialog } from "@/ui/dialog";
import { Field, Input, Textarea } from "@/ui/field";
import { SecretInput } from "@/ui/inputs";
import { Loaded } from "@/ui/states";
import { Ago } from "@/ui/time";
import { failed, toast } from "@/ui/toast";
import { ConnectionTest, FindingList, findingsOf } from "./findings";
import { useFrozen } from "./form";

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

const webhook = () => `${location.origin}/api/v1/webhooks/github`;

export function AccessTab({ project }: { project: Project }) {
  const frozen = Boolean(useFrozen(project));
  const query = useQuery({
    queryKey: ["credentials", project.id],
    queryFn: async () =>
      (
        await got(
          api.GET("/api/v1/projects/{project_id}/credentials", { params: { path: { project_id: project.id } } }),
        )
      ).items,
  });
  return (
    <>
      <Section
        title="Credentials"
        description="Write-only: only the last characters of a token or the fingerprint of a key are shown."
      >
        <Loaded query={query}>
          {(stored) => (
            <ul className="divide-y">
              {KINDS.map((one) => (
                <Row
                  key={one.kind}
                  {...one}
                  projectId={project.id}
                  frozen={frozen}
                  stored={stored.find((has) => has.kind === one.kind)}
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
          <code className="min-w-0 flex-1 truncate font-mono text-xs" title={webhook()}>
            {webhook()}
          </code>
          <CopyButton text={webhook()} label="Copy webhook URL" />
        </div>
      </Section>
      <Section title="Connection">
        <ConnectionTest projectId={project.id} />
      </Section>
    </>
  );
}

function Row({
  kind,
  title,
  about,
  stored,
  projectId,
  frozen,
}: (typeof KINDS)[number] & { stored: Credential | undefined; projectId: string; frozen: boolean }) {
  const [open, setOpen] = useState(false);
  const client = useQueryClient();
  const remove = useMutation({
    mutationFn: () =>
      got(
        api.DELETE("/api/v1/projects/{project_id}/credentials/{kind}", {
          params: { path: { project_id: projectId, kind } },
        }),
      ),
    onSuccess: () => client.invalidateQueries({ queryKey: ["credentials", projectId] }),
    onError: failed(`Could not remove the ${title}`),
  });
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
          onConfirm={() => remove.mutateAsync()}
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
        <Write kind={kind} title={title} projectId={projectId} onDone={() => setOpen(false)} />
      </Dialog>
    </li>
  );
}

function Write({
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
  const client = useQueryClient();
  const [given, setGiven] = useState({ value: "", username: "", appId: "", installationId: "" });
  const set = (patch: Partial<typeof given>) => setGiven((now) => ({ ...now, ...patch }));
  const save = useMutation({
    mutationFn: (test: boolean) =>
      got(
        api.PUT("/api/v1/projects/{project_id}/credentials", {
          params: { path: { project_id: projectId }, query: { test } },
          body: bodyOf(kind, given),
        }),
      ),
    onSuccess: () => {
      void client.invalidateQueries({ queryKey: ["credentials", projectId] });
      void client.invalidateQueries({ queryKey: ["projects"] });
      toast.success(`${title} saved`);
      onDone();
    },
  });
  const at = (field: string) => fault(save.error, field);
  const findings = findingsOf(save.error);
  const tested = kind !== "webhook_secret"; // the connection test does not use it
  const long = kind === "ssh_key" || kind === "app";
  return (
    <form
      className="flex flex-col gap-3"
      noValidate
      onSubmit={(event) => {
        event.preventDefault();
        if (given.value && !save.isPending) save.mutate(tested);
      }}
    >
      {kind === "app" && (
        <div className="grid gap-3 sm:grid-cols-2">
          <Field label="App ID" hint="The app's ID or client ID." error={at("app.appId")}>
            {(wear) => <Input {...wear} value={given.appId} onChange={(event) => set({ appId: event.target.value })} />}
          </Field>
          <Field label="Installation ID" error={at("app.installationId")}>
            {(wear) => (
              <Input
                {...wear}
                value={given.installationId}
                onChange={(event) => set({ installationId: event.target.value })}
              />
            )}
          </Field>
        </div>
      )}
      <Field
        label={kind === "app" ? "Private key (.pem)" : title}
        error={at({ token: "token", ssh_key: "sshKey", app: "app.privateKey", webhook_secret: "webhookSecret" }[kind])}
      >
        {(wear) =>
          long ? (
            <Textarea
              {...wear}
              rows={8}
              spellCheck={false}
              autoComplete="off"
              className="font-mono !text-xs"
              placeholder={"-----BEGIN … PRIVATE KEY-----"}
              value={given.value}
              onChange={(event) => set({ value: event.target.value })}
            />
          ) : (
            <SecretInput {...wear} value={given.value} onChange={(event) => set({ value: event.target.value })} />
          )
        }
      </Field>
      {kind === "token" && (
        <Field label="Username" hint="Optional; not needed for GitHub." error={at("username")}>
          {(wear) => (
            <Input
              {...wear}
              autoComplete="off"
              placeholder="x-access-token"
              value={given.username}
              onChange={(event) => set({ username: event.target.value })}
            />
          )}
        </Field>
      )}
      {save.error && (
        <Failure>{findings ? "The connection test failed. Nothing was saved." : overall(save.error)}</Failure>
      )}
      {findings && <FindingList findings={findings} />}
      <div className="flex justify-end gap-2">
        <Button onClick={onDone}>Cancel</Button>
        {findings && (
          <Button disabled={save.isPending} onClick={() => save.mutate(false)}>
            Save anyway
          </Button>
        )}
        <Button type="submit" look="primary" busy={save.isPending} disabled={!given.value}>
          Save
        </Button>
      </div>
    </form>
  );
}

function Failure({ children }: { children: ReactNode }) {
  return (
    <p role="alert" className="text-[13px] text-bad">
      {children}
    </p>
  );
}

function bodyOf(
  kind: Kind,
  given: { value: string; username: string; appId: string; installationId: string },
): Schemas["GivenCredentials"] {
  switch (kind) {
    case "token":
      return { token: given.value, ...(given.username.trim() && { username: given.username.trim() }) };
    case "ssh_key":
      return { sshKey: given.value };
    case "app":
      return {
        app: { appId: given.appId.trim(), installationId: given.installationId.trim(), privateKey: given.value },
      };
    case "webhook_secret":
      return { webhookSecret: given.value };
  }
}
