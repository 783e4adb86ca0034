import { expect, it } from "vitest";
import { decodeBase64 } from "./base64";

it("decodes base64", () => expect([...decodeBase64("AP9h")]).toEqual([0, 255, 97]));
