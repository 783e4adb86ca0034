import { useMutation } from "@tanstack/react-query";
import { type FormEvent, useState } from "react";
import { api, got } from "@/api/client";
import type { Project, Task } from "@/api/types";
import { Button } from "@/ui/button";
import { Field, Input, Textarea } from "@/ui/field";
import { words } from "@/ui/states";

export interface Suggestion {
  title: string;
  description: string;
}

const FIRST: Suggestion = {
  title: "Say hello",
  description: "create HELLO.md: Hello from my first task.\ncommit: docs: say hello",
};

export function TaskStep({
  project,
  agent,
  demo,
  suggestions,
  onBack,
  onDone,
}: {
  project: Project;
  agent: string;
  demo: boolean;
  suggestions: Suggestion[];
  onBack: () => void;
  onDone: (task: Task) => void;
}) {
  const ideas = demo ? (suggestions.length ? suggestions : [FIRST]) : [];
  const [title, setTitle] = useState(ideas[0]?.title ?? "");
  const [description, setDescription] = useState(ideas[0]?.description ?? "");
  const add = useMutation({
    mutationFn: () =>
      got(
        api.POST("/api/v1/tasks", {
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
        }),
      ),
    onSuccess: onDone,
  });
  const submit = (event: FormEvent) => {
    event.preventDefault();
    add.mutate();
  };
  return (
    <form onSubmit={submit} className="flex flex-col gap-3 rounded-lg border bg-surface p-4">
      {ideas.length > 0 && (
        <div className="flex flex-wrap items-center gap-2">
          <span className="text-xs text-soft">Try:</span>
          {ideas.map((idea) => (
            <Button
              key={idea.title}
              size="sm"
              aria-pressed={idea.title === title}
              onClick={() => {
                setTitle(idea.title);
                setDescription(idea.description);
              }}
            >
              {idea.title}
            </Button>
          ))}
        </div>
      )}
      <Field label="Title">
        {(wear) => (
          <Input {...wear} required maxLength={200} value={title} onChange={(e) => setTitle(e.target.value)} />
        )}
      </Field>
      <Field
        label="What shall it do?"
        hint={
          demo
            ? "The demo agent follows lines such as create, append, replace, run, commit, ask."
            : "As you would tell a colleague."
        }
        error={add.error ? words(add.error) : undefined}
      >
        {(wear) => (
          <Textarea
            {...wear}
            rows={8}
            className="font-mono"
            value={description}
            onChange={(e) => setDescription(e.target.value)}
          />
        )}
      </Field>
      <div className="flex gap-2">
        <Button onClick={onBack}>Back</Button>
        <Button look="primary" type="submit" busy={add.isPending}>
          Start
        </Button>
      </div>
    </form>
  );
}
