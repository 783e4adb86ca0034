import { FolderGit2, Sparkles } from "lucide-react";
import { type FormEvent, useState } from "react";
import { fieldError } from "@/api/errors";
import { useIsAdmin } from "@/api/queries/account";
import { useCreateProject, useCreateSampleProject, useProjects } from "@/api/queries/projects";
import type { Project } from "@/api/types";
import { KnownRepository } from "@/features/projects/known-repository";
import { suggestName } from "@/features/projects/names";
import { TokenHelp } from "@/features/projects/token-help";
import { findingAt } from "@/model/connection-test";
import { Button } from "@/ui/button";
import { Field, Input } from "@/ui/field";
import { errorMessage } from "@/ui/states";
import { showError } from "@/ui/toast";
import type { Suggestion } from "./task-step";

export function RepositoryStep({ onDone }: { onDone: (project: Project, suggestions: Suggestion[]) => void }) {
  const isAdmin = useIsAdmin();
  const projects = useProjects();
  const [repository, setRepository] = useState("");
  const [token, setToken] = useState("");
  const sample = useCreateSampleProject({
    onSuccess: ({ project, tasks }) => onDone(project, tasks),
    onError: showError("Could not create the sample project"),
  });
  const create = useCreateProject({ onSuccess: (project) => onDone(project, []) });
  const tokenError = findingAt(create.error, "token") ?? fieldError(create.error, "token");
  // errors that belong to no field of this form are shown at the repository
  const repositoryError =
    findingAt(create.error, "repository") ??
    fieldError(create.error, "repository") ??
    (create.error && !tokenError ? errorMessage(create.error) : undefined);
  const hasBegun = repository.trim() !== ""; // then adding the user's own repository is the main action
  const submit = (event: FormEvent) => {
    event.preventDefault();
    create.mutate({
      name: suggestName(repository) || "project",
      repository: repository.trim(),
      token: token.trim() || null,
      test: true,
    });
  };
  return (
    <div className="grid gap-4 md:grid-cols-2">
      {!isAdmin && projects.data?.length === 0 && (
        <p role="note" className="rounded-md bg-info-soft px-2.5 py-1.5 text-[13px] md:col-span-2">
          You are not a member of any project. To work on an existing one, ask its owner or an administrator to add you,
          under Members in the project's settings. Or start with a project of your own:
        </p>
      )}
      <section className="flex flex-col gap-3 rounded-lg border bg-surface p-4">
        <h2 className="flex items-center gap-2 font-semibold">
          <Sparkles className="size-4 text-accent" aria-hidden /> Try the sample
        </h2>
        <p className="text-[13px] text-soft">
          A small Python package with a bug and a test that shows it, in a repository that Sandyard creates on this
          machine. You need no account, and nothing leaves the machine.
        </p>
        <Button
          look={hasBegun ? "plain" : "primary"}
          className="mt-auto self-start"
          busy={sample.isPending}
          onClick={() => sample.mutate()}
        >
          Use the sample repository
        </Button>
      </section>
      <form onSubmit={submit} className="flex flex-col gap-3 rounded-lg border bg-surface p-4">
        <h2 className="flex items-center gap-2 font-semibold">
          <FolderGit2 className="size-4 text-accent" aria-hidden /> Add your own
        </h2>
        <Field
          label="Repository"
          hint={isAdmin ? "https://…, ssh://…, or a path on the server." : "https://… or ssh://…"}
          error={repositoryError}
        >
          {(control) => (
            <Input
              {...control}
              required
              value={repository}
              onChange={(e) => setRepository(e.target.value)}
              placeholder="https://github.com/you/project"
            />
          )}
        </Field>
        <KnownRepository repository={repository} onUse={(project) => onDone(project, [])} />
        <Field
          label="Token"
          hint="For a private repository or GitHub pull requests. Stored encrypted and never passed to a sandbox."
          error={tokenError}
        >
          {(control) => (
            <Input
              {...control}
              type="password"
              autoComplete="off"
              value={token}
              onChange={(e) => setToken(e.target.value)}
            />
          )}
        </Field>
        <TokenHelp repository={repository.trim()} />
        <Button type="submit" look={hasBegun ? "primary" : "plain"} className="self-start" busy={create.isPending}>
          Test and add
        </Button>
      </form>
      {projects.data && projects.data.length > 0 && (
        <section className="rounded-lg border bg-surface p-4 md:col-span-2">
          <h2 className="mb-2 font-semibold">Or use an existing project</h2>
          <ul className="flex flex-wrap gap-2">
            {projects.data.map((project) => (
              <li key={project.id}>
                <Button onClick={() => onDone(project, [])}>{project.name}</Button>
              </li>
            ))}
          </ul>
        </section>
      )}
    </div>
  );
}
