import { Plus, X } from "lucide-react";
import { fieldError } from "@/api/errors";
import { useSaveMcpServer } from "@/api/queries/mcp-servers";
import type { McpServer } from "@/api/types";
import { formatEnv, formatLine, parseEnv, parseLine } from "@/lib/env-lines";
import { findingsOf } from "@/model/connection-test";
import { Button, IconButton } from "@/ui/button";
import { Field, Input, Select } from "@/ui/field";
import { SubmitForm, useFormState } from "@/ui/form";
import { ListInput, SecretInput } from "@/ui/inputs";
import { toast } from "@/ui/toast";
import { duplicateOf, type Header, headerRows, headersOf, hintOf, isChanged } from "./headers";

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
  const [form, set] = useFormState({
    name: server?.name ?? "",
    type: server?.type ?? "http",
    url: server?.url ?? "",
    headers: headerRows(server),
    command: server?.command ?? "",
    args: (server?.args ?? []).map(formatLine),
    env: formatEnv(server?.env ?? {}),
  });
  const env = parseEnv(form.env);
  const save = useSaveMcpServer({
    onSuccess: (saved) => {
      toast.success(`${saved.name} saved`);
      onDone();
    },
  });
  const testFailed = findingsOf(save.error) !== null;
  const errorAt = (field: string) => fieldError(save.error, field);
  const needsTest =
    form.type === "http" && (!server || form.url.trim() !== server.url || isChanged(form.headers, server));
  const duplicate = duplicateOf(form.headers);
  const complete = form.name.trim() && (form.type === "http" ? form.url.trim() && !duplicate : form.command.trim());
  const submit = (test: boolean) => {
    if (typeof env === "string") return; // the error is shown at the field
    const details =
      form.type === "http"
        ? { url: form.url.trim(), headers: headersOf(form.headers) }
        : { command: form.command.trim(), args: form.args.map(parseLine), env };
    save.mutate({ projectId, id: server?.id, body: { name: form.name.trim(), ...details, test } });
  };
  return (
    <SubmitForm
      busy={save.isPending}
      error={save.error}
      ready={Boolean(complete)}
      submitLabel={needsTest ? "Test and save" : "Save"}
      onSubmit={() => submit(needsTest)}
      onCancel={onDone}
      actions={
        testFailed && (
          <Button disabled={save.isPending} onClick={() => submit(false)}>
            Save without testing
          </Button>
        )
      }
    >
      <div className="grid gap-3 sm:grid-cols-2">
        <Field
          label="Name"
          hint="Up to 40 letters, digits and hyphens. Used in the names of its tools."
          error={errorAt("name")}
        >
          {(control) => (
            <Input
              {...control}
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
            {(control) => (
              <Select
                {...control}
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
            error={errorAt("url")}
          >
            {(control) => (
              <Input
                {...control}
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
            error={duplicate ? `Duplicate header: ${duplicate}` : errorAt("headers")}
          />
        </>
      ) : (
        <>
          <Field
            label="Command"
            hint="A program in the sandbox, run without a shell. It is not tested when you save it: if it fails, run it in a task's terminal to see why."
            error={errorAt("command")}
          >
            {(control) => (
              <Input
                {...control}
                spellCheck={false}
                className="font-mono !text-xs"
                placeholder="npx"
                value={form.command}
                onChange={(event) => set({ command: event.target.value })}
              />
            )}
          </Field>
          <Field label="Arguments" hint="One per line." error={errorAt("args")}>
            {(control) => (
              <ListInput
                {...control}
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
            error={typeof env === "string" ? env : errorAt("env")}
          >
            {(control) => (
              <ListInput
                {...control}
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
    </SubmitForm>
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
    onChange(value.map((header) => (header.key === key ? { ...header, ...patch } : header)));
  return (
    <fieldset className="flex flex-col gap-2">
      <legend className="mb-1 text-[13px] font-medium">Headers</legend>
      {value.map((header) => {
        const hint = hintOf(header.name, server);
        return (
          <div key={header.key} className="flex items-center gap-2">
            <Input
              aria-label="Header"
              spellCheck={false}
              className="!w-2/5 font-mono !text-xs"
              placeholder="Authorization"
              value={header.name}
              onChange={(event) => change(header.key, { name: event.target.value })}
            />
            <SecretInput
              aria-label={`Value of ${header.name || "the header"}`}
              placeholder={hint ? `${hint} (unchanged)` : "Bearer …"}
              value={header.value}
              onChange={(event) => change(header.key, { value: event.target.value })}
            />
            <IconButton
              label={`Remove ${header.name || "the header"}`}
              size="sm"
              onClick={() => onChange(value.filter((other) => other.key !== header.key))}
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
            const key = Math.max(0, ...value.map((header) => header.key)) + 1;
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
