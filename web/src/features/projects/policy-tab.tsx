import type { Project } from "@/api/types";
import { Section } from "@/shell/page";
import { Field } from "@/ui/field";
import { Fields, Form } from "@/ui/form";
import { ListInput } from "@/ui/inputs";
import { useProjectForm } from "./form";

export function PolicyTab({ project }: { project: Project }) {
  const { settings, edit, form, fault } = useProjectForm(project);
  const { commandPolicy } = settings;
  return (
    <Form {...form}>
      <Section
        title="Command policy"
        description="For commands that are run in sandboxes through the platform. Regular expressions (RE2), one a line, searched for in the whole command."
      >
        <Fields>
          <Field
            label="Allow"
            hint="With anything here, all else is refused. Empty: everything that is not denied."
            error={fault("commandPolicy.allow")}
          >
            {(wear) => (
              <ListInput
                {...wear}
                mono
                rows={10}
                placeholder={"^git \n^npm (ci|test)$"}
                value={commandPolicy.allow}
                onChange={(allow) => edit("commandPolicy", { allow })}
              />
            )}
          </Field>
          <Field label="Deny" hint="Wins over what is allowed." error={fault("commandPolicy.deny")}>
            {(wear) => (
              <ListInput
                {...wear}
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
