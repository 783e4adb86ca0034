import type { Project } from "@/api/types";
import { isolationLabel } from "@/model/isolation";
import { Field, Input, Select, Textarea } from "@/ui/field";
import { Fields, Form } from "@/ui/form";
import { NumberInput } from "@/ui/inputs";
import { Section } from "@/ui/page";
import { Preparations } from "./preparations";
import { useProjectForm } from "./project-form";

const ENGINE = "engine";
const ISOLATION_LEVELS = [
  { value: ENGINE, label: "Engine default" },
  { value: "namespace", label: isolationLabel("namespace"), detail: "Linux namespaces on the host's kernel. Fastest." },
  {
    value: "gvisor",
    label: isolationLabel("gvisor"),
    detail: "A separate kernel per sandbox. Stronger isolation; processes start more slowly.",
  },
];
const TEMPLATE = "template";
const CONTAINERS = [
  { value: TEMPLATE, label: "Template default" },
  { value: "true", label: "Allowed", detail: "Docker works. More of the host's kernel is reachable." },
  { value: "false", label: "Not allowed" },
];

export function SetupTab({ project }: { project: Project }) {
  const { draft, settings, edit, form, errorAt } = useProjectForm(project);
  const { setup, verify } = settings;
  return (
    <>
      <Form {...form}>
        <Section title="Setup" description="Prepares a checkout, once per base commit. Sessions start from the result.">
          <Fields>
            <Field
              label="Setup command"
              className="sm:col-span-2"
              hint="Leave empty to use the repository's .sandyard/setup.sh or, without one, its devcontainer.json."
              error={errorAt("setup.command")}
            >
              {(control) => (
                <Textarea
                  {...control}
                  rows={3}
                  spellCheck={false}
                  className="font-mono !text-xs"
                  placeholder="npm ci"
                  value={setup.command ?? ""}
                  onChange={(event) => edit("setup", { command: event.target.value || null })}
                />
              )}
            </Field>
            <Field label="Timeout (seconds)" error={errorAt("setup.timeoutSeconds")}>
              {(control) => (
                <NumberInput
                  {...control}
                  min={1}
                  value={setup.timeoutSeconds}
                  onChange={(seconds) => edit("setup", { timeoutSeconds: seconds ?? 0 })}
                />
              )}
            </Field>
            <Field
              label="Template"
              hint="The template of the project's sandboxes. Leave empty for the platform's default."
              error={errorAt("template")}
            >
              {(control) => (
                <Input
                  {...control}
                  spellCheck={false}
                  placeholder="base"
                  value={settings.template ?? ""}
                  onChange={(event) =>
                    draft.set({ settings: { ...settings, template: event.target.value.trim() || null } })
                  }
                />
              )}
            </Field>
            <Field
              label="Isolation"
              hint={
                <>
                  Applies to new sandboxes. If the server does not support the level, they fail to start. To check
                  whether gVisor is available, run <code className="font-mono">sandyard doctor</code> on the server.
                </>
              }
              error={errorAt("isolation")}
            >
              {(control) => (
                <Select
                  {...control}
                  value={settings.isolation ?? ENGINE}
                  onChange={(level) =>
                    draft.set({
                      settings: {
                        ...settings,
                        isolation: level === ENGINE ? null : (level as typeof settings.isolation),
                      },
                    })
                  }
                  choices={ISOLATION_LEVELS}
                />
              )}
            </Field>
            <Field
              label="Containers"
              hint={
                <>
                  Whether new sandboxes may run Docker. The <code className="font-mono">docker</code> template contains
                  Docker and allows it by default. Containers need the isolation level gVisor, unless the server's
                  administrator allows them without it.
                </>
              }
              error={errorAt("containers")}
            >
              {(control) => (
                <Select
                  {...control}
                  value={settings.containers === null ? TEMPLATE : String(settings.containers)}
                  onChange={(choice) =>
                    draft.set({
                      settings: { ...settings, containers: choice === TEMPLATE ? null : choice === "true" },
                    })
                  }
                  choices={CONTAINERS}
                />
              )}
            </Field>
          </Fields>
        </Section>
        <Section title="Verification" description="A command that must succeed before work is committed and pushed.">
          <Fields>
            <Field
              label="Verify command"
              className="sm:col-span-2"
              hint="Leave empty to skip verification."
              error={errorAt("verify.command")}
            >
              {(control) => (
                <Textarea
                  {...control}
                  rows={3}
                  spellCheck={false}
                  className="font-mono !text-xs"
                  placeholder="make test"
                  value={verify.command ?? ""}
                  onChange={(event) => edit("verify", { command: event.target.value || null })}
                />
              )}
            </Field>
            <Field label="Timeout (seconds)" error={errorAt("verify.timeoutSeconds")}>
              {(control) => (
                <NumberInput
                  {...control}
                  min={1}
                  value={verify.timeoutSeconds}
                  onChange={(seconds) => edit("verify", { timeoutSeconds: seconds ?? 0 })}
                />
              )}
            </Field>
            <Field
              label="Automatic fix attempts"
              hint="How many times a failure is sent back to the agent."
              error={errorAt("verify.fixes")}
            >
              {(control) => (
                <NumberInput
                  {...control}
                  min={0}
                  value={verify.fixes}
                  onChange={(fixes) => edit("verify", { fixes: fixes ?? 0 })}
                />
              )}
            </Field>
          </Fields>
        </Section>
      </Form>
      <Preparations project={project} />
    </>
  );
}
