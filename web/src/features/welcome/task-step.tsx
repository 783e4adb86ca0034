import { type FormEvent, useState } from "react";
import { useSaveTask } from "@/api/queries/tasks";
import type { Project, Task } from "@/api/types";
import { Button } from "@/ui/button";
import { Field, Input, Textarea } from "@/ui/field";
import { errorMessage } from "@/ui/states";

export interface Suggestion {
  title: string;
  description: string;
}

const DEMO_EXAMPLE: Suggestion = {
  title: "Say hello",
  description: "create HELLO.md: Hello from my first task.\ncommit: docs: say hello",
};

const EXAMPLES: Suggestion[] = [
  {
    title: "Explain the project in its README",
    description:
      "Read the code and add a section to the README that explains what the project does, how to run it and how to run its tests. Change nothing else.",
  },
  {
    title: "Add a missing test",
    description: "Find an important function that has no test, and add one. Do not change the function.",
  },
  {
    title: "Fix a small bug",
    description:
      "Find a bug in the code. Write a test that shows it, fix it, and explain in the commit message what was wrong.",
  },
];

export function TaskStep({
  project,
  agent,
  agentName,
  demo,
  suggestions,
  onBack,
  onDone,
}: {
  project: Project;
  agent: string;
  agentName: string;
  demo: boolean;
  suggestions: Suggestion[];
  onBack: () => void;
  onDone: (task: Task) => void;
}) {
  const examples = demo ? (suggestions.length ? suggestions : [DEMO_EXAMPLE]) : EXAMPLES;
  const [title, setTitle] = useState(demo ? (examples[0]?.title ?? "") : "");
  const [description, setDescription] = useState(demo ? (examples[0]?.description ?? "") : "");
  const create = useSaveTask({ onSuccess: onDone });
  const submit = (event: FormEvent) => {
    event.preventDefault();
    create.mutate({
      body: {
        projectId: project.id,
        title,
        description,
        agent,
        start: true,
        priority: 0,
        attempts: [],
        needs: [],
        budget: {},
      },
    });
  };
  return (
    <form onSubmit={submit} className="flex flex-col gap-3 rounded-lg border bg-surface p-4">
      <p className="text-[13px]">
        <strong className="font-medium">{agentName}</strong> works on{" "}
        <strong className="font-medium">{project.name}</strong>, on a new branch from{" "}
        {project.baseBranch ? <code className="font-mono text-xs">{project.baseBranch}</code> : "the default branch"}.
        {project.repository && (
          <span className="block font-mono text-xs break-all text-soft">{project.repository}</span>
        )}
      </p>
      {examples.length > 0 && (
        <div className="flex flex-wrap items-center gap-2">
          <span className="text-xs text-soft">Try:</span>
          {examples.map((example) => (
            <Button
              key={example.title}
              size="sm"
              aria-pressed={example.title === title}
              onClick={() => {
                setTitle(example.title);
                setDescription(example.description);
              }}
            >
              {example.title}
            </Button>
          ))}
        </div>
      )}
      <Field label="Title">
        {(control) => (
          <Input
            {...control}
            required
            maxLength={200}
            placeholder="Fix the login for upper-case names"
            value={title}
            onChange={(e) => setTitle(e.target.value)}
          />
        )}
      </Field>
      <Field
        label="What should the agent do?"
        hint={
          demo
            ? "The demo agent understands lines that begin with create, append, replace, run, commit or ask."
            : "Describe it as you would to a colleague."
        }
        error={create.error ? errorMessage(create.error) : undefined}
      >
        {(control) => (
          <Textarea
            {...control}
            rows={8}
            className={demo ? "font-mono" : ""}
            placeholder={
              demo ? undefined : "What is wrong or missing, how you noticed it, and how to tell that it is done."
            }
            value={description}
            onChange={(e) => setDescription(e.target.value)}
          />
        )}
      </Field>
      <div className="flex gap-2">
        <Button onClick={onBack}>Back</Button>
        <Button look="primary" type="submit" busy={create.isPending}>
          Start
        </Button>
      </div>
    </form>
  );
}
