import type { Project } from "@/api/types";
import { findingsOf } from "@/model/connection-test";
import type { Settings } from "@/model/project-settings";
import { Field, Input, Select, Switch } from "@/ui/field";
import { Fields, Form } from "@/ui/form";
import { ListInput } from "@/ui/inputs";
import { Section } from "@/ui/page";
import { ForgeNote } from "./forge-note";
import { type ProjectForm, useProjectForm } from "./project-form";

const MESSAGES = [
  { value: "conventional", label: "Conventional Commits", detail: "feat: …, fix(scope): …" },
  { value: "any", label: "Any" },
];
const CI_FILES = [
  { value: "refuse", label: "Not pushed" },
  { value: "allow", label: "Pushed", detail: "The forge runs them with the repository's secrets before a review." },
];
const KINDS = [
  {
    value: "auto",
    label: "Automatic",
    detail: "GitHub for github.com or if an API URL is set, otherwise a plain Git remote.",
  },
  { value: "github", label: "GitHub" },
  { value: "plain", label: "Plain Git remote", detail: "Branches are pushed; there are no pull requests." },
];
const METHODS = [
  { value: "squash", label: "Squash into one commit" },
  { value: "merge", label: "Merge commit" },
  { value: "rebase", label: "Rebase" },
];
const PEOPLE = [
  { key: "author", label: "Author", hint: "Leave empty for Sandyard." },
  { key: "committer", label: "Committer", hint: "Leave empty for the author." },
  { key: "coAuthor", label: "Co-author", hint: "Leave empty for the session's agent." },
] as const;
const LISTS = [
  { key: "labels", label: "Labels" },
  { key: "reviewers", label: "Reviewers" },
  { key: "assignees", label: "Assignees" },
] as const;

/** Return whether the API URL has changed: the new one is tested before it is saved. */
const isApiChanged = (before: Settings, now: Settings) =>
  now.forge.kind !== "plain" && now.forge.apiUrl !== null && now.forge.apiUrl !== before.forge.apiUrl;

export function ForgeTab({ project }: { project: Project }) {
  const projectForm = useProjectForm(project, { test: isApiChanged });
  const { settings, edit, form, errorAt } = projectForm;
  const { git, forge } = settings;
  return (
    <Form {...form}>
      <Section title="Forge">
        <ForgeNote project={project} linked={false} className="m-4 mb-0" />
        <Fields>
          <Field label="Forge" error={errorAt("forge.kind")}>
            {(control) => (
              <Select
                {...control}
                value={forge.kind}
                onChange={(kind) => edit("forge", { kind: kind as typeof forge.kind })}
                choices={KINDS}
              />
            )}
          </Field>
          <Field
            label="API URL"
            hint="For GitHub Enterprise Server. Leave empty for github.com."
            error={errorAt("forge.apiUrl") ?? findingsOf(form.error)?.[0]?.detail}
          >
            {(control) => (
              <Input
                {...control}
                spellCheck={false}
                placeholder="https://github.example.org/api/v3"
                value={forge.apiUrl ?? ""}
                onChange={(event) => edit("forge", { apiUrl: event.target.value.trim() || null })}
              />
            )}
          </Field>
        </Fields>
      </Section>
      <Section title="Pull requests">
        <Fields>
          <Field label="Merge method" error={errorAt("forge.mergeMethod")}>
            {(control) => (
              <Select
                {...control}
                value={forge.mergeMethod}
                onChange={(how) => edit("forge", { mergeMethod: how as typeof forge.mergeMethod })}
                choices={METHODS}
              />
            )}
          </Field>
          <div className="flex flex-col justify-end gap-2 pb-1">
            <Switch checked={forge.draft} onChange={(draft) => edit("forge", { draft })} label="Open as draft" />
            <Switch
              checked={forge.deleteBranch}
              onChange={(deleteBranch) => edit("forge", { deleteBranch })}
              label="Delete the branch after merging"
            />
          </div>
          {LISTS.map((item) => (
            <Field key={item.key} label={item.label} hint="One per line." error={errorAt(`forge.${item.key}`)}>
              {(control) => (
                <ListInput
                  {...control}
                  rows={3}
                  value={forge[item.key]}
                  onChange={(list) => edit("forge", { [item.key]: list })}
                />
              )}
            </Field>
          ))}
        </Fields>
      </Section>
      <Section title="Commits">
        <Fields>
          {PEOPLE.map((field) => (
            <Identity
              key={field.key}
              projectForm={projectForm}
              which={field.key}
              label={field.label}
              hint={field.hint}
            />
          ))}
          <Field
            label="Commit messages"
            hint="Required format of commit subjects, checked before committing and pushing."
            error={errorAt("git.commitMessages")}
          >
            {(control) => (
              <Select
                {...control}
                value={git.commitMessages}
                onChange={(which) => edit("git", { commitMessages: which as typeof git.commitMessages })}
                choices={MESSAGES}
              />
            )}
          </Field>
          <Field
            label="Changes of CI files"
            hint="Commits that change what continuous integration runs, such as .github/workflows."
            error={errorAt("git.ciFiles")}
          >
            {(control) => (
              <Select
                {...control}
                value={git.ciFiles}
                onChange={(which) => edit("git", { ciFiles: which as typeof git.ciFiles })}
                choices={CI_FILES}
              />
            )}
          </Field>
        </Fields>
      </Section>
    </Form>
  );
}

/** A name and an email address. Both empty means not set. */
function Identity({
  projectForm,
  which,
  label,
  hint,
}: {
  projectForm: ProjectForm;
  which: (typeof PEOPLE)[number]["key"];
  label: string;
  hint: string;
}) {
  const { settings, edit, errorAt } = projectForm;
  const person = settings.git[which] ?? { name: "", email: "" };
  const set = (patch: Partial<typeof person>) => {
    const next = { ...person, ...patch };
    edit("git", { [which]: next.name || next.email ? next : null });
  };
  return (
    <>
      <Field label={`${label} name`} hint={hint} error={errorAt(`git.${which}.name`)}>
        {(control) => (
          <Input
            {...control}
            autoComplete="off"
            value={person.name}
            onChange={(event) => set({ name: event.target.value })}
          />
        )}
      </Field>
      <Field label={`${label} email`} error={errorAt(`git.${which}.email`)}>
        {(control) => (
          <Input
            {...control}
            type="email"
            autoComplete="off"
            value={person.email}
            onChange={(event) => set({ email: event.target.value })}
          />
        )}
      </Field>
    </>
  );
}
