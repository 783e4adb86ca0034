import { useNavigate } from "@tanstack/react-router";
import { fieldError, formError } from "@/api/errors";
import { useIsAdmin } from "@/api/queries/account";
import { useCreateProject } from "@/api/queries/projects";
import { findingAt, findingsOf } from "@/model/connection-test";
import { Button } from "@/ui/button";
import { Dialog } from "@/ui/dialog";
import { Field, Input } from "@/ui/field";
import { SubmitForm, useFormState } from "@/ui/form";
import { SecretInput } from "@/ui/inputs";
import { toast } from "@/ui/toast";
import { FindingList } from "./connection-test";
import { KnownRepository } from "./known-repository";
import { suggestName } from "./names";
import { SampleButton } from "./sample-button";
import { TokenHelp } from "./token-help";

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
      <ProjectFields onClose={() => onOpenChange(false)} />
    </Dialog>
  );
}

function ProjectFields({ onClose }: { onClose: () => void }) {
  const navigate = useNavigate();
  const isAdmin = useIsAdmin();
  const [form, set] = useFormState(BLANK);
  const suggested = suggestName(form.repository);
  const create = useCreateProject({
    onSuccess: (project, { test: tested }) => {
      onClose();
      toast.success(`Added ${project.name}`);
      if (tested && project.forgeNote)
        return navigate({ to: "/projects/$projectId", params: { projectId: project.id }, search: { tab: "forge" } });
      return tested
        ? navigate({ to: "/board", search: { project: project.id } })
        : navigate({ to: "/projects/$projectId", params: { projectId: project.id }, search: { tab: "access" } });
    },
  });
  const findings = findingsOf(create.error);
  const errorAt = (field: string) => findingAt(create.error, field) ?? fieldError(create.error, field);
  const submit = (test: boolean) =>
    create.mutate({
      test,
      name: form.name.trim() || suggested,
      repository: form.repository.trim(),
      ...(form.baseBranch.trim() && { baseBranch: form.baseBranch.trim() }),
      ...(form.token && { token: form.token }),
      ...(form.token && form.username.trim() && { username: form.username.trim() }),
    });
  return (
    <SubmitForm
      columns
      busy={create.isPending}
      ready={Boolean(form.repository.trim())}
      submitLabel="Test and add"
      onSubmit={() => submit(true)}
      onCancel={onClose}
      divided
      aside={<SampleButton onDone={onClose} />}
      actions={
        findings && (
          <Button disabled={create.isPending} onClick={() => submit(false)}>
            Add anyway
          </Button>
        )
      }
    >
      <Field
        label="Repository"
        className="sm:col-span-2"
        hint={isAdmin ? "An HTTPS or SSH URL, or a path on the server." : "An HTTPS or SSH URL."}
        error={errorAt("repository")}
      >
        {(control) => (
          <Input
            {...control}
            required
            autoFocus
            spellCheck={false}
            placeholder="https://github.com/you/website.git"
            value={form.repository}
            onChange={(event) => set({ repository: event.target.value })}
          />
        )}
      </Field>
      <KnownRepository
        repository={form.repository}
        onUse={(project) => {
          onClose();
          void navigate({ to: "/board", search: { project: project.id } });
        }}
      />
      <Field label="Name" error={fieldError(create.error, "name")}>
        {(control) => (
          <Input
            {...control}
            placeholder={suggested || "website"}
            value={form.name}
            onChange={(event) => set({ name: event.target.value })}
          />
        )}
      </Field>
      <Field label="Base branch" error={errorAt("baseBranch")}>
        {(control) => (
          <Input
            {...control}
            placeholder="repository default"
            spellCheck={false}
            value={form.baseBranch}
            onChange={(event) => set({ baseBranch: event.target.value })}
          />
        )}
      </Field>
      <Field
        label="Token"
        hint="To push, for pull requests and for private repositories. Write-only."
        error={errorAt("token")}
      >
        {(control) => (
          <SecretInput {...control} value={form.token} onChange={(event) => set({ token: event.target.value })} />
        )}
      </Field>
      <Field label="Username" hint="Optional; not needed for GitHub." error={fieldError(create.error, "username")}>
        {(control) => (
          <Input
            {...control}
            autoComplete="off"
            placeholder="x-access-token"
            value={form.username}
            onChange={(event) => set({ username: event.target.value })}
          />
        )}
      </Field>
      <TokenHelp repository={form.repository.trim()} className="sm:col-span-2" />
      {create.error && (
        <div role="alert" className="flex flex-col gap-2 text-[13px] sm:col-span-2">
          <p className="text-bad">
            {findings ? "The connection test failed. Nothing was added." : formError(create.error)}
          </p>
          {findings && <FindingList findings={findings} />}
        </div>
      )}
    </SubmitForm>
  );
}
