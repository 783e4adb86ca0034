import { Link } from "@tanstack/react-router";
import type { Project } from "@/api/types";
import { Field } from "@/ui/field";
import { Fields, Form } from "@/ui/form";
import { ListInput } from "@/ui/inputs";
import { Section } from "@/ui/page";
import { useProjectForm } from "./project-form";

export function PolicyTab({ project }: { project: Project }) {
  const { settings, edit, form, errorAt } = useProjectForm(project);
  const { commandPolicy } = settings;
  return (
    <Form {...form}>
      <Section
        title="Command policy"
        description={
          <>
            Applies to commands that people run through Sandyard (Output tab,{" "}
            <code className="font-mono">sandyard sandbox exec</code>, API, MCP) and to the setup and verify commands.
            Does not apply to commands that agents run (see{" "}
            <Link
              to="/projects/$projectId"
              params={{ projectId: project.id }}
              search={{ tab: "agent" }}
              className="text-accent underline underline-offset-2"
            >
              Agent permissions
            </Link>
            ), or to terminals, SSH and editors. Regular expressions (RE2), one per line, matched anywhere in the
            command.
          </>
        }
      >
        <Fields>
          <Field
            label="Allow"
            hint="If set, all other commands are denied. If empty, every command that is not denied is allowed."
            error={errorAt("commandPolicy.allow")}
          >
            {(control) => (
              <ListInput
                {...control}
                mono
                rows={10}
                placeholder={"^git \n^npm (ci|test)$"}
                value={commandPolicy.allow}
                onChange={(allow) => edit("commandPolicy", { allow })}
              />
            )}
          </Field>
          <Field label="Deny" hint="Takes precedence over the allow list." error={errorAt("commandPolicy.deny")}>
            {(control) => (
              <ListInput
                {...control}
                mono
                rows={10}
                placeholder="\bsudo\b"
                value={commandPolicy.deny}
                onChange={(deny) => edit("commandPolicy", { deny })}
              />
            )}
          </Field>
        </Fields>
      </Section>
    </Form>
  );
}
