import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { useNavigate } from "@tanstack/react-router";
import { type FormEvent, useState } from "react";
import { api, got } from "@/api/client";
import { me } from "@/api/queries";
import { fault, overall } from "@/lib/problems";
import { Button } from "@/ui/button";
import { Dialog } from "@/ui/dialog";
import { Field, Input } from "@/ui/field";
import { SecretInput } from "@/ui/inputs";
import { toast } from "@/ui/toast";
import { FindingList, findingAt, findingsOf } from "./findings";
import { nameOf } from "./names";
import { TakeSample } from "./sample";

const BLANK = { name: "", repository: "", baseBranch: "", token: "", username: "" };

/** Add a project. The connection is tested first; if that fails, the user can still add the project. */
export function AddProject({ open, onOpenChange }: { open: boolean; onOpenChange: (open: boolean) => void }) {
  return (
    <Dialog
      open={open}
      onOpenChange={onOpenChange}
      title="Add a project"
      description="A repository and its credentials. The connection is tested before anything is saved."
    >
      <Describe onClose={() => onOpenChange(false)} />
    </Dialog>
  );
}

function Describe({ onClose }: { onClose: () => void }) {
  const client = useQueryClient();
  const navigate = useNavigate();
  const admin = useQuery(me).data?.user.role === "admin";
  const [form, setForm] = useState(BLANK);
  const set = (patch: Partial<typeof BLANK>) => setForm((now) => ({ ...now, ...patch }));
  const suggested = nameOf(form.repository);
  const make = useMutation({
    mutationFn: (test: boolean) =>
      got(
        api.POST("/api/v1/projects", {
          body: {
            test,
            name: form.name.trim() || suggested,
            repository: form.repository.trim(),
            ...(form.baseBranch.trim() && { baseBranch: form.baseBranch.trim() }),
            ...(form.token && { token: form.token }),
            ...(form.token && form.username.trim() && { username: form.username.trim() }),
          },
        }),
      ),
    onSuccess: (project, tested) => {
      void client.invalidateQueries({ queryKey: ["projects"] });
      onClose();
      toast.success(`Added ${project.name}`);
      if (tested && project.forgeNote)
        return navigate({ to: "/projects/$projectId", params: { projectId: project.id }, search: { tab: "forge" } });
      return tested
        ? navigate({ to: "/board", search: { project: project.id } })
        : navigate({ to: "/projects/$projectId", params: { projectId: project.id }, search: { tab: "access" } });
    },
  });
  const findings = findingsOf(make.error);
  const at = (field: string) => findingAt(make.error, field) ?? fault(make.error, field);
  const submit = (event: FormEvent) => {
    event.preventDefault();
    if (form.repository.trim() && !make.isPending) make.mutate(true);
  };
  return (
    <form onSubmit={submit} className="grid gap-3 sm:grid-cols-2" noValidate>
      <Field
        label="Repository"
        className="sm:col-span-2"
        hint={admin ? "An HTTPS or SSH URL, or a path on the platform's host." : "An HTTPS or SSH URL."}
        error={at("repository")}
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
      <Field label="Base branch" error={at("baseBranch")}>
        {(wear) => (
          <Input
            {...wear}
            placeholder="repository default"
            spellCheck={false}
            value={form.baseBranch}
            onChange={(event) => set({ baseBranch: event.target.value })}
          />
        )}
      </Field>
      <Field label="Token" hint="For private repositories. Write-only." error={at("token")}>
        {(wear) => (
          <SecretInput {...wear} value={form.token} onChange={(event) => set({ token: event.target.value })} />
        )}
      </Field>
      <Field label="Username" hint="Optional; not needed for GitHub." error={fault(make.error, "username")}>
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
        <div role="alert" className="flex flex-col gap-2 text-[13px] sm:col-span-2">
          <p className="text-bad">
            {findings ? "The connection test failed. Nothing was added." : overall(make.error)}
          </p>
          {findings && <FindingList findings={findings} />}
        </div>
      )}
      <div className="flex flex-wrap items-center justify-end gap-2 border-t pt-3 sm:col-span-2">
        <div className="mr-auto">
          <TakeSample onDone={onClose} />
        </div>
        <Button onClick={onClose}>Cancel</Button>
        {findings && (
          <Button disabled={make.isPending} onClick={() => make.mutate(false)}>
            Add anyway
          </Button>
        )}
        <Button type="submit" look="primary" busy={make.isPending} disabled={!form.repository.trim()}>
          Test and add
        </Button>
      </div>
    </form>
  );
}
