import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { FolderGit2, Sparkles } from "lucide-react";
import { type FormEvent, useState } from "react";
import { api, got } from "@/api/client";
import { projects } from "@/api/queries";
import type { Project } from "@/api/types";
import { findingAt } from "@/features/projects/findings";
import { fault } from "@/lib/problems";
import { Button } from "@/ui/button";
import { Field, Input } from "@/ui/field";
import { words } from "@/ui/states";
import { failed } from "@/ui/toast";
import type { Suggestion } from "./task-step";

export function RepositoryStep({ onDone }: { onDone: (project: Project, suggestions: Suggestion[]) => void }) {
  const client = useQueryClient();
  const known = useQuery(projects);
  const [repository, setRepository] = useState("");
  const [token, setToken] = useState("");
  const forget = () => client.invalidateQueries({ queryKey: ["projects"] });
  const sample = useMutation({
    mutationFn: () => got(api.POST("/api/v1/projects/sample")),
    onSuccess: (made) => {
      void forget();
      onDone(made.project, made.tasks);
    },
    onError: failed("Could not create the sample project"),
  });
  const add = useMutation({
    mutationFn: () =>
      got(
        api.POST("/api/v1/projects", {
          body: { name: nameOf(repository), repository: repository.trim(), token: token.trim() || null, test: true },
        }),
      ),
    onSuccess: (project) => {
      void forget();
      onDone(project, []);
    },
  });
  const atToken = findingAt(add.error, "token") ?? fault(add.error, "token");
  // errors that belong to no field of this form are shown at the repository
  const atRepository =
    findingAt(add.error, "repository") ??
    fault(add.error, "repository") ??
    (add.error && !atToken ? words(add.error) : undefined);
  const submit = (event: FormEvent) => {
    event.preventDefault();
    add.mutate();
  };
  return (
    <div className="grid gap-4 md:grid-cols-2">
      <section className="flex flex-col gap-3 rounded-lg border bg-surface p-4">
        <h2 className="flex items-center gap-2 font-semibold">
          <Sparkles className="size-4 text-accent" aria-hidden /> Try the sample
        </h2>
        <p className="text-[13px] text-soft">
          A small Python package with a bug and a test that shows it, in a repository that Sandyard creates on this
          machine. You need no account, and nothing leaves the machine.
        </p>
        <Button look="primary" className="mt-auto self-start" busy={sample.isPending} onClick={() => sample.mutate()}>
          Use the sample repository
        </Button>
      </section>
      <form onSubmit={submit} className="flex flex-col gap-3 rounded-lg border bg-surface p-4">
        <h2 className="flex items-center gap-2 font-semibold">
          <FolderGit2 className="size-4 text-accent" aria-hidden /> Add your own
        </h2>
        <Field label="Repository" hint="https://…, ssh://…, or a path on this machine." error={atRepository}>
          {(wear) => (
            <Input
              {...wear}
              required
              value={repository}
              onChange={(e) => setRepository(e.target.value)}
              placeholder="https://github.com/you/project"
            />
          )}
        </Field>
        <Field
          label="Token"
          hint="For a private repository or GitHub pull requests. Stored encrypted and never passed to a sandbox."
          error={atToken}
        >
          {(wear) => (
            <Input
              {...wear}
              type="password"
              autoComplete="off"
              value={token}
              onChange={(e) => setToken(e.target.value)}
            />
          )}
        </Field>
        <Button type="submit" className="self-start" busy={add.isPending}>
          Test and add
        </Button>
      </form>
      {known.data && known.data.length > 0 && (
        <section className="rounded-lg border bg-surface p-4 md:col-span-2">
          <h2 className="mb-2 font-semibold">Or use an existing project</h2>
          <ul className="flex flex-wrap gap-2">
            {known.data.map((project) => (
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

/** Return `project` for `https://github.com/you/project.git`. */
function nameOf(repository: string): string {
  return (
    repository
      .trim()
      .replace(/\/+$/, "")
      .replace(/\.git$/, "")
      .split(/[/:]/)
      .pop() || "project"
  );
}
