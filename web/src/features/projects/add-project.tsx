import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { type FormEvent, useState } from "react";
import { api, got } from "@/api/client";
import { me } from "@/api/queries";
import type { Project } from "@/api/types";
import { fault, overall } from "@/lib/problems";
import { Button } from "@/ui/button";
import { Dialog } from "@/ui/dialog";
import { Field, Input } from "@/ui/field";
import { SecretInput } from "@/ui/inputs";
import { Findings, useConnectionTest } from "./findings";
import { nameOf } from "./names";
import { TakeSample } from "./sample";

const BLANK = { name: "", repository: "", baseBranch: "", token: "", username: "" };

/** First what it is; then, when it is made, whether its repository can be reached. */
export function AddProject({ open, onOpenChange }: { open: boolean; onOpenChange: (open: boolean) => void }) {
  const [made, setMade] = useState<Project | null>(null);
  const show = (next: boolean) => {
    if (!next) setMade(null);
    onOpenChange(next);
  };
  return (
    <Dialog
      open={open}
      onOpenChange={show}
      title={made ? made.name : "Add a project"}
      description={made ? "It is made. Can its repository be reached?" : "A repository, and what opens it."}
    >
      {made ? (
        <Tried project={made} onClose={() => show(false)} />
      ) : (
        <Describe onMade={setMade} onClose={() => show(false)} />
      )}
    </Dialog>
  );
}

function Describe({ onMade, onClose }: { onMade: (project: Project) => void; onClose: () => void }) {
  const client = useQueryClient();
  const admin = useQuery(me).data?.user.role === "admin";
  const [form, setForm] = useState(BLANK);
  const set = (patch: Partial<typeof BLANK>) => setForm((now) => ({ ...now, ...patch }));
  const suggested = nameOf(form.repository);
  const make = useMutation({
    mutationFn: () =>
      got(
        api.POST("/api/v1/projects", {
          body: {
            name: form.name.trim() || suggested,
            repository: form.repository.trim(),
            ...(form.baseBranch.trim() && { baseBranch: form.baseBranch.trim() }),
            ...(form.token && { token: form.token }),
            ...(form.token && form.username.trim() && { username: form.username.trim() }),
          },
        }),
      ),
    onSuccess: (project) => {
      void client.invalidateQueries({ queryKey: ["projects"] });
      onMade(project);
    },
  });
  const submit = (event: FormEvent) => {
    event.preventDefault();
    if (form.repository.trim() && !make.isPending) make.mutate();
  };
  return (
    <form onSubmit={submit} className="grid gap-3 sm:grid-cols-2" noValidate>
      <Field
        label="Repository"
        className="sm:col-span-2"
        hint={admin ? "An https or ssh address, or a path on the platform's own machine." : "An https or ssh address."}
        error={fault(make.error, "repository")}
      >
        {(wear) => (
          <Input
            {...wear}
            required
            autoFocus
            spellCheck={false}
            placeholder="https://github.com/you/website.git"
            value={form.repository}
            onChange={(event) => set({ repository: event.target.value })}
          />
        )}
      </Field>
      <Field label="Name" error={fault(make.error, "name")}>
        {(wear) => (
          <Input
            {...wear}
            placeholder={suggested || "website"}
            value={form.name}
            onChange={(event) => set({ name: event.target.value })}
          />
        )}
      </Field>
      <Field label="Base branch" error={fault(make.error, "baseBranch")}>
        {(wear) => (
          <Input
            {...wear}
            placeholder="the repository's default"
            spellCheck={false}
            value={form.baseBranch}
            onChange={(event) => set({ baseBranch: event.target.value })}
          />
        )}
      </Field>
      <Field label="Token" hint="Opens a private repository; never shown again." error={fault(make.error, "token")}>
        {(wear) => (
          <SecretInput {...wear} value={form.token} onChange={(event) => set({ token: event.target.value })} />
        )}
      </Field>
      <Field label="User name of the token" hint="GitHub needs none." error={fault(make.error, "username")}>
        {(wear) => (
          <Input
            {...wear}
            autoComplete="off"
            placeholder="x-access-token"
            value={form.username}
            onChange={(event) => set({ username: event.target.value })}
          />
        )}
      </Field>
      {make.error && (
        <p role="alert" className="text-[13px] text-bad sm:col-span-2">
          {overall(make.error)}
        </p>
      )}
      <div className="flex flex-wrap items-center justify-end gap-2 border-t pt-3 sm:col-span-2">
        <div className="mr-auto">
          <TakeSample onDone={onClose} />
        </div>
        <Button onClick={onClose}>Cancel</Button>
        <Button type="submit" look="primary" busy={make.isPending} disabled={!form.repository.trim()}>
          Add
        </Button>
      </div>
    </form>
  );
}

function Tried({ project, onClose }: { project: Project; onClose: () => void }) {
  const test = useConnectionTest(project.id);
  return (
    <div className="flex flex-col gap-3" aria-live="polite">
      {test.data ? (
        <Findings tested={test.data} />
      ) : (
        <p className="text-[13px] text-soft">Test it before the first task, so that the work can be pushed.</p>
      )}
      <div className="flex flex-wrap justify-end gap-2 border-t pt-3">
        <Link
          to="/projects/$projectId"
          params={{ projectId: project.id }}
          search={{ tab: "access" }}
          onClick={onClose}
          className="mr-auto inline-flex h-8 items-center text-[13px] text-accent underline underline-offset-2"
        >
          Its settings
        </Link>
        <Button busy={test.isPending} onClick={() => test.mutate()}>
          {test.data ? "Test again" : "Test the connection"}
        </Button>
        <Link
          to="/board"
          search={{ project: project.id }}
          className="inline-flex h-8 items-center rounded-md bg-accent px-3 text-[13px] font-medium text-on-accent hover:bg-accent-hover"
        >
          To its board
        </Link>
      </div>
    </div>
  );
}
