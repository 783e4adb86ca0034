import { useMutation, useQueryClient } from "@tanstack/react-query";
import { Plus, X } from "lucide-react";
import { type FormEvent, useState } from "react";
import { api, got } from "@/api/client";
import { asLine, asLines, envsOf, wordOf } from "@/features/agents/envs";
import { findingsOf } from "@/features/projects/findings";
import { fault, overall } from "@/lib/problems";
import { Button, IconButton } from "@/ui/button";
import { Field, Input, Select } from "@/ui/field";
import { ListInput, SecretInput } from "@/ui/inputs";
import { toast } from "@/ui/toast";
import { duplicateOf, type Header, headersOf, hintOf, isChanged, writtenHeaders } from "./headers";
import type { McpServer } from "./servers";

const TYPES = [
  { value: "http", label: "URL", detail: "The platform connects to it and adds its keys." },
  { value: "stdio", label: "Command", detail: "Runs in the sandbox and uses standard input and output." },
];

export function ServerForm({
  server,
  projectId,
  onDone,
}: {
  server: McpServer | undefined;
  projectId: string;
  onDone: () => void;
}) {
  const client = useQueryClient();
  const [form, setForm] = useState({
    name: server?.name ?? "",
    type: server?.type ?? "http",
    url: server?.url ?? "",
    headers: writtenHeaders(server),
    command: server?.command ?? "",
    args: (server?.args ?? []).map(asLine),
    env: asLines(server?.env ?? {}),
  });
  const set = (patch: Partial<typeof form>) => setForm((now) => ({ ...now, ...patch }));
  const env = envsOf(form.env);
  const save = useMutation({
    mutationFn: (test: boolean) => {
      if (typeof env === "string") throw new Error(env);
      const body = {
        name: form.name.trim(),
        ...(form.type === "http"
          ? { url: form.url.trim(), headers: headersOf(form.headers) }
          : { command: form.command.trim(), args: form.args.map(wordOf), env }),
        test,
      };
      const path = { project_id: projectId };
      return server
        ? got(
            api.PATCH("/api/v1/projects/{project_id}/mcp-servers/{server_id}", {
              params: { path: { ...path, server_id: server.id } },
              body,
            }),
          )
        : got(api.POST("/api/v1/projects/{project_id}/mcp-servers", { params: { path }, body }));
    },
    onSuccess: (saved) => {
      void client.invalidateQueries({ queryKey: ["mcp-servers", projectId] });
      toast.success(`${saved.name} saved`);
      onDone();
    },
  });
  const refused = findingsOf(save.error) !== null;
  const at = (field: string) => fault(save.error, field);
  const tested = form.type === "http" && (!server || form.url.trim() !== server.url || isChanged(form.headers, server));
  const duplicate = duplicateOf(form.headers);
  const complete = form.name.trim() && (form.type === "http" ? form.url.trim() && !duplicate : form.command.trim());
  const submit = (event: FormEvent) => {
    event.preventDefault();
    if (complete && !save.isPending) save.mutate(tested);
  };
  return (
    <form onSubmit={submit} className="flex flex-col gap-3" noValidate>
      <div className="grid gap-3 sm:grid-cols-2">
        <Field
          label="Name"
          hint="Up to 40 letters, digits and dashes. Part of the names of its tools."
          error={at("name")}
        >
          {(wear) => (
            <Input
              {...wear}
              autoComplete="off"
              spellCheck={false}
              placeholder="issues"
              value={form.name}
              onChange={(event) => set({ name: event.target.value })}
            />
          )}
        </Field>
        {!server && (
          <Field label="Type">
            {(wear) => (
              <Select
                {...wear}
                value={form.type}
                onChange={(type) => {
                  set({ type: type as typeof form.type });
                  save.reset(); // test results of one type do not apply to the other
                }}
                choices={TYPES}
              />
            )}
          </Field>
        )}
      </div>
      {form.type === "http" ? (
        <>
          <Field
            label="URL"
            hint="Streamable HTTP endpoint. Visible to everyone in the project: pass keys as headers."
            error={at("url")}
          >
            {(wear) => (
              <Input
                {...wear}
                spellCheck={false}
                className="font-mono !text-xs"
                placeholder="https://mcp.example.org/mcp"
                value={form.url}
                onChange={(event) => set({ url: event.target.value })}
              />
            )}
          </Field>
          <Headers
            value={form.headers}
            onChange={(headers) => set({ headers })}
            server={server}
            error={duplicate ? `Duplicate header: ${duplicate}` : at("headers")}
          />
        </>
      ) : (
        <>
          <Field
            label="Command"
            hint="A program in the sandbox, run without a shell. It is not tested when you save it: if it fails, run it in a task's terminal to see why."
            error={at("command")}
          >
            {(wear) => (
              <Input
                {...wear}
                spellCheck={false}
                className="font-mono !text-xs"
                placeholder="npx"
                value={form.command}
                onChange={(event) => set({ command: event.target.value })}
              />
            )}
          </Field>
          <Field label="Arguments" hint="One per line." error={at("args")}>
            {(wear) => (
              <ListInput
                {...wear}
                mono
                rows={3}
                placeholder={"-y\n@example/mcp-server@1.2.3"}
                value={form.args}
                onChange={(args) => set({ args })}
              />
            )}
          </Field>
          <Field
            label="Environment variables"
            hint="NAME=value, one per line. Not secret: visible to everyone in the project and to every program in the sandbox."
            error={typeof env === "string" ? env : at("env")}
          >
            {(wear) => (
              <ListInput
                {...wear}
                mono
                rows={3}
                placeholder="LOG_LEVEL=info"
                value={form.env}
                onChange={(lines) => set({ env: lines })}
              />
            )}
          </Field>
        </>
      )}
      {save.error && (
        <p role="alert" className="text-[13px] text-bad">
          {overall(save.error)}
        </p>
      )}
      <div className="flex flex-wrap justify-end gap-2">
        <Button onClick={onDone}>Cancel</Button>
        {refused && (
          <Button disabled={save.isPending} onClick={() => save.mutate(false)}>
            Save without testing
          </Button>
        )}
        <Button type="submit" look="primary" busy={save.isPending} disabled={!complete}>
          {tested ? "Test and save" : "Save"}
        </Button>
      </div>
    </form>
  );
}

function Headers({
  value,
  onChange,
  server,
  error,
}: {
  value: Header[];
  onChange: (value: Header[]) => void;
  server: McpServer | undefined;
  error: string | undefined;
}) {
  const change = (key: number, patch: Partial<Header>) =>
    onChange(value.map((one) => (one.key === key ? { ...one, ...patch } : one)));
  return (
    <fieldset className="flex flex-col gap-2">
      <legend className="mb-1 text-[13px] font-medium">Headers</legend>
      {value.map((one) => {
        const hint = hintOf(one.name, server);
        return (
          <div key={one.key} className="flex items-center gap-2">
            <Input
              aria-label="Header"
              spellCheck={false}
              className="!w-2/5 font-mono !text-xs"
              placeholder="Authorization"
              value={one.name}
              onChange={(event) => change(one.key, { name: event.target.value })}
            />
            <SecretInput
              aria-label={`Value of ${one.name || "the header"}`}
              placeholder={hint ? `${hint} (unchanged)` : "Bearer …"}
              value={one.value}
              onChange={(event) => change(one.key, { value: event.target.value })}
            />
            <IconButton
              label={`Remove ${one.name || "the header"}`}
              size="sm"
              onClick={() => onChange(value.filter((other) => other.key !== one.key))}
            >
              <X className="size-3.5" aria-hidden />
            </IconButton>
          </div>
        );
      })}
      <div>
        <Button
          size="sm"
          onClick={() => {
            const key = Math.max(0, ...value.map((one) => one.key)) + 1;
            onChange([...value, { key, name: value.length ? "" : "Authorization", value: "" }]);
          }}
        >
          <Plus className="size-3.5" aria-hidden /> Add a header
        </Button>
      </div>
      <p className={error ? "text-xs text-bad" : "text-xs text-faint"}>
        {error ?? "Write-only: values are stored encrypted, never shown and never passed to a sandbox."}
      </p>
    </fieldset>
  );
}
