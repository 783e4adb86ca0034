import { expect, it } from "vitest";
import { cronError, describeCron } from "./cron";

it.each([
  ["0 6 * * MON-FRI", "At 06:00, Monday to Friday"],
  ["0 3 * * *", "At 03:00, every day"],
  ["*/15 * * * *", "Every 15 minutes"],
  ["5 * * * *", "Every hour at :05"],
  ["30 */2 * * *", "Every 2 hours at :30"],
  ["0 9,17 * * 1,3,5", "At 09:00 and 17:00, Monday, Wednesday and Friday"],
  ["0 0 1 1 *", "At 00:00, on day 1 of the month, in January"],
  ["0 0 L * *", "At 00:00, on the last day of the month"],
  ["0 0 1 * 0", "At 00:00, on day 1 of the month, or on Sunday"],
  ["0 0 * * 7", "At 00:00, Sunday"],
  ["* * * * *", "Every minute"],
])("%s", (cron, words) => {
  expect(describeCron(cron)).toBe(words);
});

it.each(["", "0 6 * *", "99 6 * * *", "0 6 * * FOO", "0 25 * * *", "0-30/7 * * * *", "0 6 * * 1-2-3"])(
  "does not describe %s",
  (cron) => {
    expect(describeCron(cron)).toBeNull();
  },
);

it("counts the fields", () => {
  expect(cronError("0 6 * *")).toContain("Five fields");
  expect(cronError(" 0 6 * *  MON ")).toBeNull();
});
